#!/bin/sh
# Tables 8 and 9: what makes members differ, with 48 heads drawn from the first 100 of one ranking, on ImageNet-1K.
#
#   IMAGENET=... OPENOOD=... sh examples/paper/table8.sh
. "$(dirname "$0")/common.sh"

images imagenet
base_model
circuits
tuned avg
circuit_to_draw_from
drawn 0 1 2
# The seed of the draw differs between members, that of the training does, both do, or none: seven trainings.
tuned drawn.0 drawn.1 drawn.2
by_seed 1
tuned drawn.0 drawn.1
by_seed 2
tuned drawn.0 drawn.2
member=$OUT/tuned/drawn
measure table8 "single=$BASE" "circ-avg=$OUT/tuned/avg.tuned.st" \
  "pruning=$member.0.tuned.st+$member.1.tuned.st+$member.2.tuned.st" \
  "order=$member.0.tuned.st+$member.0.tuned.seed1.st+$member.0.tuned.seed2.st" \
  "both=$member.0.tuned.st+$member.1.tuned.seed1.st+$member.2.tuned.seed2.st" \
  "nothing=$member.0.tuned.st+$member.0.tuned.st+$member.0.tuned.st"
beside 8 9

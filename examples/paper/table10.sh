#!/bin/sh
# Table 10: three members and five, on ImageNet-1K. The two more are drawn from the ranking of CircAvg, as in B.5.
#
#   IMAGENET=... OPENOOD=... sh examples/paper/table10.sh      after table1.sh, whose deep ensemble it takes
. "$(dirname "$0")/common.sh"

images imagenet
base_model
circuits
circuit_to_draw_from
drawn 0 1
tuned acc ood avg drawn.0 drawn.1
fused hydra-circ acc ood avg
fused hydra-five acc ood avg drawn.0 drawn.1
deep=
if have "$OUT/deep.2.st"; then deep="deep=$OUT/deep.0.st+$OUT/deep.1.st+$OUT/deep.2.st"; fi
measure table10 "single=$BASE" $deep "hydra-3=$OUT/hydra-circ.st" "hydra-5=$OUT/hydra-five.st"
step "$OUT/table10.bench.json" hydractl bench "single=$BASE" "deep=$BASE+$BASE+$BASE" "hydra-3=$OUT/hydra-circ.st" \
  "hydra-5=$OUT/hydra-five.st" --batch-size 4 --dtype float16 --whole-last-block $TIMING -o "$OUT/table10.bench.json"
beside 10

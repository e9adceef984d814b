#!/bin/sh
# Table 4: pruned models that are not trained afterwards, on ImageNet-1K, CIFAR-100 and SST-2.
#
#   IMAGENET=... OPENOOD=... CIFAR=... SST2=... TEXTS=... AGNEWS=... sh examples/paper/table4.sh [SET]
#
# SET is imagenet, cifar100 or sst2, for one of the three.
. "$(dirname "$0")/common.sh"

for set in ${1:-imagenet cifar100 sst2}; do
  if [ "$set" = sst2 ]; then texts; else images "$set"; fi
  base_model
  circuits
  step "$OUT/taylor.0.st" hydractl prune "$BASE" --method taylor --keep $KEEP --data "$TRAIN" $LENGTH --seed 0 \
    -o "$OUT/taylor.0.st"
  measure table4 "single=$BASE" "taylor=$OUT/taylor.0.st" "circ-avg=$OUT/avg.st"
done
beside 4

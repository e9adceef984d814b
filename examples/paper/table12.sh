#!/bin/sh
# Table 12: eight seeds, means and standard deviations, on ImageNet-1K and CIFAR-100.
#
#   IMAGENET=... OPENOOD=... CIFAR=... sh examples/paper/table12.sh [imagenet|cifar100]
. "$(dirname "$0")/common.sh"

for set in ${1:-imagenet cifar100}; do
  images "$set"
  base_model
  circuits
  answers=
  for seed in $SEEDS; do
    by_seed $seed
    tuned acc ood avg
    fused hydra-circ acc ood avg
    measure "seeds/$seed" "single=$BASE" "hydra-circ=$OUT/hydra-circ$MARK.st"
    answers="$answers $OUT/seeds/$seed.json"
  done
  step "$OUT/table12.json" hydractl report $answers --over seed -o "$OUT/table12.json"
  beside "12-$set"
done

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
    members=
    for objective in acc ood avg; do
      member=$OUT/seeds/$objective.$seed.st
      step "$member" hydractl finetune "$OUT/$objective.st" --train "$TRAIN" --val "$VAL" --recipe $RECIPE $TUNING \
        $RESUME --seed $seed -o "$member"
      members="$members $member"
    done
    hydra=$OUT/seeds/hydra.$seed.st
    step "$hydra" hydractl fuse $members --merge mlp,norm,embed -o "$hydra"
    measure "seeds/$seed" "single=$BASE" "hydra-circ=$hydra"
    answers="$answers $OUT/seeds/$seed.json"
  done
  step "$OUT/table12.json" hydractl report $answers --over seed -o "$OUT/table12.json"
  beside "12-$set"
done

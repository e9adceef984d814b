#!/bin/sh
# An entry of OpenOOD's leaderboard: its lists, its sets, its table, for ImageNet-1K, ImageNet-200, CIFAR-10, CIFAR-100.
#
#   OPENOOD=/data/openood sh examples/paper/openood.sh [imagenet|imagenet200|cifar10|cifar100] [MODEL]
#
# Without a MODEL, ViT-B/16 of ImageNet-21k is trained on the benchmark's training list, and its circuits are fused.
. "$(dirname "$0")/common.sh"

for set in ${1:-imagenet imagenet200 cifar100 cifar10}; do
  need OPENOOD "OpenOOD's folder, as its scripts/download/download.py leaves it"
  SET=$set
  OUT=$RUNS/openood/$set
  TRAIN="openood:$set/train?root=$OPENOOD"
  VAL="openood:$set/val?root=$OPENOOD"
  OOD_VAL="openood:$set/ood-val?root=$OPENOOD"
  LENGTH=
  case $set in
    imagenet*) KEEP=8 recipe=base-imagenet1k ;;
    *) KEEP=10 recipe=base-cifar100 ;;
  esac
  model=${2:-}
  if [ ! "$model" ]; then
    BASE=$OUT/base.st
    step "$BASE" hydractl finetune "$VIT" --train "$TRAIN" --val "$VAL" --recipe $recipe $BASE_STEPS $RESUME -o "$BASE"
    circuits
    model=$OUT/hydra.st
    step "$model" hydractl fuse "$OUT/acc.st" "$OUT/ood.st" "$OUT/avg.st" -o "$model"
  fi
  step "$OUT/ood.json" hydractl eval "hydra=$model" --test "openood:$set/test?root=$OPENOOD" \
    --ood-suite openood-$set:official --ood-root "$OPENOOD" $EVALUATION -o "$OUT/ood.json"
  step "$OUT/ood.csv" hydractl report "$OUT/ood.json" --openood-csv "$OUT/ood.csv"
  case $set in
    imagenet*)
      step "$OUT/fsood.json" hydractl eval "hydra=$model" --test "openood:$set/full-spectrum?root=$OPENOOD" \
        --ood-suite openood-$set:official --ood-root "$OPENOOD" $EVALUATION -o "$OUT/fsood.json"
      step "$OUT/fsood.csv" hydractl report "$OUT/fsood.json" --openood-csv "$OUT/fsood.csv" ;;
  esac
done

#!/bin/sh
# An entry of OpenOOD's leaderboard: its lists, its sets, its table, for ImageNet-1K, ImageNet-200, CIFAR-10, CIFAR-100.
#
#   OPENOOD=/data/openood sh examples/paper/openood.sh [imagenet|imagenet200|cifar10|cifar100] [MODEL]
#
# Without a MODEL, ViT-B/16 of ImageNet-21k is trained on the benchmark's training list, and its circuits are fused.
. "$(dirname "$0")/common.sh"

# benchmarked NAME LIST: the model on a test list and the benchmark's OOD sets, and the table of their evaluator.
benchmarked() {
  step "$OUT/$1.json" hydractl eval "hydra=$model" --test "openood:$set/$2?root=$OPENOOD" \
    --ood-suite openood-$set:official --ood-root "$OPENOOD" $EVALUATION $BOOTSTRAP --resume \
    --predictions "$OUT/$1.pred.st" -o "$OUT/$1.json"
  step "$OUT/$1.csv" hydractl report "$OUT/$1.json" --openood-csv "$OUT/$1.csv"
}

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
    step "$BASE" hydractl finetune "$VIT" --train "$TRAIN" --val "$VAL" --recipe $recipe $BASE_STEPS --resume -o "$BASE"
    circuits
    model=$OUT/hydra.st
    step "$model" hydractl fuse "$OUT/acc.st" "$OUT/ood.st" "$OUT/avg.st" -o "$model"
  fi
  benchmarked ood test
  case $set in
    imagenet*) benchmarked fsood full-spectrum ;;
  esac
done

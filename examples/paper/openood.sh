#!/bin/sh
# An entry of OpenOOD's leaderboard: its lists, its sets, its table, for ImageNet-1K, ImageNet-200, CIFAR-10, CIFAR-100.
#
#   OPENOOD=/data/openood sh examples/paper/openood.sh [imagenet|imagenet200|cifar10|cifar100] [MODEL]
#
# Without a MODEL, ViT-B/16 of ImageNet-21k is trained on the benchmark's training list, and its circuits are fused.
. "$(dirname "$0")/common.sh"

# benchmarked NAME SPEC: the model on test data and the benchmark's OOD sets, and the table of their evaluator.
benchmarked() {
  step "$OUT/$1.json" hydractl eval "hydra=$model" --test "$2" $(openood_sets "$set" official) $EVALUATION $BOOTSTRAP \
    --resume --predictions "$OUT/$1.pred.st" -o "$OUT/$1.json"
  step "$OUT/$1.csv" "$PYTHON" "$HERE/openood_table.py" "$OUT/$1.json" -o "$OUT/$1.csv"
}

for set in ${1:-imagenet imagenet200 cifar100 cifar10}; do
  need OPENOOD "OpenOOD's folder, as its scripts/download/download.py leaves it"
  SET=$set
  OUT=$RUNS/openood/$set
  case $set in
    imagenet*) KEEP=8 recipe=base-imagenet1k size=largescale ;;
    *) KEEP=10 recipe=base-cifar100 size=classic ;;
  esac
  TRAIN=$(listed $set train_$set $size)
  VAL=$(listed $set val_$set $size)
  OOD_VAL=$(openood_val $set)
  LENGTH=
  model=${2:-}
  if [ ! "$model" ]; then
    BASE=$OUT/base.st
    step "$BASE" hydractl finetune "$VIT" --train "$TRAIN" --val "$VAL" --recipe $recipe $BASE_STEPS --resume -o "$BASE"
    circuits
    model=$OUT/hydra.st
    step "$model" hydractl fuse "$OUT/acc.st" "$OUT/ood.st" "$OUT/avg.st" -o "$model"
  fi
  benchmarked ood "$(listed $set test_$set $size)"
  case $set in
    imagenet*)
      # Full-spectrum OOD detection: shifted covariates are ID data, too.
      lists=
      for name in $set ${set}_v2 ${set}_c ${set}_r; do lists="$lists $OPENOOD/benchmark_imglist/$set/test_$name.txt"; done
      step "$OUT/full-spectrum.txt" "$PYTHON" "$HERE/join_lists.py" $lists -o "$OUT/full-spectrum.txt"
      benchmarked fsood "$OUT/full-spectrum.txt?root=$OPENOOD/images_largescale"
      ;;
  esac
done

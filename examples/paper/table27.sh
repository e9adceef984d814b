#!/bin/sh
# Tables 27 and 28: CLIP pruned in both towers or in the visual one alone, and the text tower trained afterwards.
#
#   IMAGENET=... OPENOOD=... CIFAR=... TORCHVISION=... sh examples/paper/table27.sh
#
# With LAION=/data/laion, 60 million pairs of images and captions, the trained rows are made; PAIRS and ACCUMULATE say
# how many pairs are computed at once and how many such batches make a step.
. "$(dirname "$0")/common.sh"

clip_data
clip_circuits
for objective in acc ood avg; do
  step "$OUT/$objective.30.st" hydractl prune "$CLIP" --circuit "$OUT/circuit.$objective.json" \
    --remove $MORE_REMOVED_FROM_CLIP -o "$OUT/$objective.30.st"
done
step "$OUT/both-30.st" hydractl fuse "$OUT/acc.30.st" "$OUT/ood.30.st" "$OUT/avg.30.st" -o "$OUT/both-30.st"

# The search in the visual tower has two ID sets of different classes, so the names of the classes come with the data.
named=$OUT/imagenet-val.txt
step "$named" "$PYTHON" "$HERE/name_classes.py" "$CLIP_VAL" --labels "$CLIP_LABELS" -o "$named"
if [ "$SMALL" ]; then named_val="$MADE/cifar100.npz?from=60&take=60"; else named_val="$named?root=$IMAGENET/val"; fi
step "$OUT/visual.avg.json" hydractl extract-circuit "$CLIP" --tower visual --val "$CIFAR_VAL" --val "$named_val" \
  --ood-val "$(openood_val cifar100)" --ood-val "$(openood_val imagenet)" --paired \
  --objective acc,ood,avg --budget $REMOVED_FROM_CLIP $SEARCH --resume -o "$OUT/visual.json"
members= trained=
for objective in acc ood avg; do
  step "$OUT/visual.$objective.st" hydractl prune "$CLIP" --circuit "$OUT/visual.$objective.json" \
    -o "$OUT/visual.$objective.st"
  members="$members $OUT/visual.$objective.st"
  if [ "$LAION" ]; then
    step "$OUT/visual.$objective.tuned.st" hydractl finetune "$OUT/visual.$objective.st" --train "captions:$LAION" \
      --recipe clip-locked-image $CAPTIONS --resume -o "$OUT/visual.$objective.tuned.st"
    trained="$trained $OUT/visual.$objective.tuned.st"
  fi
done
step "$OUT/visual.st" hydractl fuse $members -o "$OUT/visual.st"
rows="both=$OUT/hydra-circ.st both-30=$OUT/both-30.st visual=$OUT/visual.st"
if [ "$LAION" ]; then
  step "$OUT/visual-tuned.st" hydractl fuse $trained --merge none -o "$OUT/visual-tuned.st"
  rows="$rows visual-tuned=$OUT/visual-tuned.st"
fi
WITH_VILU=
measure_zero_shot table27. $rows
beside 27 28

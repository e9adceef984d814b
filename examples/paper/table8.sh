#!/bin/sh
# Tables 8 and 9: what makes members differ, with 48 heads drawn from the first 100 of one ranking, on ImageNet-1K.
#
#   IMAGENET=... OPENOOD=... sh examples/paper/table8.sh
. "$(dirname "$0")/common.sh"

images imagenet
base_model
if [ "$SMALL" ]; then removed=8; else removed=48; fi
step "$OUT/circuit-drawn.json" hydractl extract-circuit "$BASE" --val "$VAL" --ood-val "$OOD_VAL" --objective avg \
  --budget $DRAWN_FROM $SEARCH $RESUME -o "$OUT/circuit-drawn.json"
lists=$OPENOOD/benchmark_imglist/imagenet
step "$OUT/diversity/eval.json" "$PYTHON" "$ANALYSES/diversity_sources.py" "$BASE" \
  --circuit "$OUT/circuit-drawn.json" --remove $removed --sample-from $DRAWN_FROM --train "$TRAIN" --val "$VAL" \
  --data "$TEST" --tuning "--recipe $RECIPE $TUNING" \
  --ood "ssb_hard:near=$lists/test_ssb_hard.txt?root=$OPENOOD/images_largescale" \
  --ood "ninco:near=$lists/test_ninco.txt?root=$OPENOOD/images_largescale" \
  --ood "inaturalist:far=$lists/test_inaturalist.txt?root=$OPENOOD/images_largescale" \
  --ood "textures:far=$lists/test_textures.txt?root=$OPENOOD/images_classic" -o "$OUT"
beside 8 9

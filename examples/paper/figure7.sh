#!/bin/sh
# Figure 7: Taylor scores of the heads of CLIP's two towers.
#
#   IMAGENET=... OPENOOD=... CIFAR=... TORCHVISION=... sh examples/paper/figure7.sh
. "$(dirname "$0")/common.sh"

clip_data
step "$OUT/scores.json" hydractl score "$CLIP" --method taylor --order one-shot --labels "$CLIP_LABELS" \
  --data "$CLIP_TRAIN" -o "$OUT/scores.json"
step "$OUT/figure7/tower_scores.png" "$PYTHON" "$ANALYSES/tower_scores.py" "$CLIP" --scores "$OUT/scores.json" \
  --remove $REMOVED_FROM_CLIP -o "$OUT/figure7"

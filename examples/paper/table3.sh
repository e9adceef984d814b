#!/bin/sh
# Table 3, and with the same evaluations Tables 24, 25 and 26: CLIP ViT-B/32, zero-shot.
#
#   IMAGENET=... OPENOOD=... CIFAR=... TORCHVISION=/data/torchvision sh examples/paper/table3.sh
#
# BayesVLM is a row with HESSIANS=BayesVLM/hessians/hessian_CLIP-ViT-B-32-laion2B-s34B-b79K, which its authors publish for
# this checkpoint (bayesvlm.py), or with LAION=/data/pairs.csv, pairs of images and captions such as it was trained on.
. "$(dirname "$0")/common.sh"

clip_data
clip_circuits
# Two heads of each block, block after block, as D.1.1 has it: 24 of the visual tower (D.3).
step "$OUT/taylor.st" hydractl prune "$CLIP" --method taylor --tower visual --keep 10 --labels "$CLIP_LABELS" \
  --data "$CLIP_TRAIN" -o "$OUT/taylor.st"
step "$OUT/temperature.st" hydractl calibrate "$CLIP" --labels "$CLIP_LABELS" --val "$CLIP_TRAIN" --limit 5000 \
  --temperature fit -o "$OUT/temperature.st"
bayesvlm=
if [ "${HESSIANS:-}" ] && [ ! "$SMALL" ]; then
  step "$OUT/bayesvlm.st" "$PYTHON" "$HERE/bayesvlm.py" "$CLIP" --hessians "$HESSIANS" -o "$OUT/bayesvlm.st"
  bayesvlm="bayesvlm=$OUT/bayesvlm.st"
elif [ "$LAION" ]; then
  step "$OUT/bayesvlm.st" hydractl finetune "$CLIP" --train "captions:$LAION" --ensemble laplace -o "$OUT/bayesvlm.st"
  bayesvlm="bayesvlm=$OUT/bayesvlm.st"
fi
WITH_VILU=1
measure_zero_shot "" "single=$CLIP" "temperature=$OUT/temperature.st" $bayesvlm "taylor=$OUT/taylor.st" \
  "circ-avg=$OUT/avg.st" "hydra-circ=$OUT/hydra-circ.st"
beside 3 24 25 26

#!/bin/sh
# Table 7 and Figure 3: time, parameters and mult-adds at batch 4.
#
#   IMAGENET=... OPENOOD=... sh examples/paper/table7.sh      after table1.sh, or from the base model on
. "$(dirname "$0")/common.sh"

images imagenet
base_model
step "$OUT/taylor.0.st" hydractl prune "$BASE" --method taylor --keep $KEEP --data "$TRAIN" --seed 0 \
  -o "$OUT/taylor.0.st"
circuits
tuned acc ood avg
fused hydra-circ acc ood avg
step "$OUT/table7.json" hydractl bench "single=$BASE" "taylor=$OUT/taylor.0.st" "circ-avg=$OUT/tuned/avg.tuned.st" \
  "deep=$BASE+$BASE+$BASE" "hydra=$OUT/hydra-circ.st" --compare stock,members --batch-size 4 \
  --dtype bfloat16,float32 --whole-last-block $TIMING -o "$OUT/table7.json"
beside 7

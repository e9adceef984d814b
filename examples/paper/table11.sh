#!/bin/sh
# Table 11: MLPs averaged or kept, on ImageNet-1K.
#
#   IMAGENET=... OPENOOD=... sh examples/paper/table11.sh
. "$(dirname "$0")/common.sh"

images imagenet
base_model
circuits
tuned acc ood avg
fused hydra-circ acc ood avg
step "$OUT/not-fused.st" hydractl fuse "$OUT/tuned/acc.tuned.st" "$OUT/tuned/ood.tuned.st" "$OUT/tuned/avg.tuned.st" \
  --merge none -o "$OUT/not-fused.st"
measure table11 "single=$BASE" "fused=$OUT/hydra-circ.st" "not-fused=$OUT/not-fused.st"
beside 11

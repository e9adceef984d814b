#!/bin/sh
# Tables 13 and 14: the models of Table 1 on corrupted images of ImageNet, at five severities.
#
#   IMAGENET=... OPENOOD=... sh examples/paper/table13.sh      after table1.sh, whose models it takes
#
# With PHOTOGRAPHS=/data/frost, the photographs of ImageNet-C's code, frost is one of the corruptions.
. "$(dirname "$0")/common.sh"

images imagenet
base_model
if [ "${PHOTOGRAPHS:-}" ] && [ ! "$SMALL" ]; then CORRUPTIONS="$CORRUPTIONS --photographs $PHOTOGRAPHS"; fi
circuits
taylor_members
tuned taylor.0 taylor.1 taylor.2 acc ood avg
fused hydra-taylor taylor.0 taylor.1 taylor.2
fused hydra-circ acc ood avg
rows="single=$BASE taylor=$OUT/tuned/taylor.0.tuned.st circ-avg=$OUT/tuned/avg.tuned.st"
rows="$rows hydra-taylor=$OUT/hydra-taylor.st hydra-circ=$OUT/hydra-circ.st"
# The baselines that table1.sh has made.
for row in "deep.2=deep=$OUT/deep.0.st+$OUT/deep.1.st+$OUT/deep.2.st" "packed=packed=$OUT/packed.st" \
  "mimo.fused=mimo=$OUT/mimo.fused.st" "batch-ensemble=batch-ensemble=$OUT/batch-ensemble.st" \
  "lora.fused=lora=$OUT/lora.fused.st" "tuned/oba.tuned=oba=$OUT/tuned/oba.tuned.st"; do
  if have "$OUT/${row%%=*}.st"; then rows="$rows ${row#*=}"; fi
done
step "$OUT/table13.json" hydractl eval $rows --test "$TEST" $CORRUPTIONS $EVALUATION -o "$OUT/table13.json"
beside 13 14

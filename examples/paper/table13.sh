#!/bin/sh
# Tables 13 and 14: the models of Table 1 on corrupted images of ImageNet, at five severities.
#
#   IMAGENET=... OPENOOD=... sh examples/paper/table13.sh      after table1.sh, whose models it takes
#
# With IMAGENETC=/data/imagenet-c, the published images as NAME/SEVERITY/CLASS/FILE, those are tested. Without it they
# are made, once for all rows, all but frost, which is of photographs that only the published images have.
. "$(dirname "$0")/common.sh"

images imagenet
base_model
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

corrupted=${IMAGENETC:-$OUT/imagenet-c}
if [ "${IMAGENETC:-}" ] && [ ! "$SMALL" ]; then CORRUPTIONS="$CORRUPTIONS frost"; fi
every=
for severity in 1 2 3 4 5; do
  answers=
  for corruption in $CORRUPTIONS; do
    folder=$corrupted/$corruption/$severity
    made="corruption=$corruption&severity=$severity"
    step "$folder" "$PYTHON" "$HERE/corrupt.py" "$IMAGENET/val?$made" --workers $MAKERS -o "$folder"
    answer=$OUT/corrupted/$corruption.$severity.json
    step "$answer" hydractl eval $rows --test "$folder?fraction=$VAL_SHARE:1" $EVALUATION -o "$answer"
    answers="$answers $answer"
  done
  step "$OUT/table13.$severity.json" hydractl report $answers --over data -o "$OUT/table13.$severity.json"
  every="$every $answers"
done
step "$OUT/table13.json" hydractl report $every --over data -o "$OUT/table13.json"
beside 13 14

#!/bin/sh
# Figures 5 and 6: 2, 4, 6 and 8 heads removed from each block by Taylor scores and by CircAvg, not trained and trained.
#
#   IMAGENET=... OPENOOD=... sh examples/paper/figures5-6.sh
. "$(dirname "$0")/common.sh"

images imagenet
base_model
for kept in $KEPT; do fewest=$kept; done
step "$OUT/circuit-long.json" hydractl extract-circuit "$BASE" --val "$VAL" --ood-val "$OOD_VAL" --objective avg \
  --keep $fewest $SEARCH --resume -o "$OUT/circuit-long.json"
untrained="12=$BASE"
trained="12=$BASE"
for kept in $KEPT; do
  step "$OUT/taylor-$kept.st" hydractl prune "$BASE" --method taylor --keep $kept --data "$TRAIN" \
    -o "$OUT/taylor-$kept.st"
  step "$OUT/avg-$kept.st" hydractl prune "$BASE" --circuit "$OUT/circuit-long.json" --keep $kept -o "$OUT/avg-$kept.st"
  tuned taylor-$kept avg-$kept
  untrained="$untrained taylor-$kept=$OUT/taylor-$kept.st avg-$kept=$OUT/avg-$kept.st"
  trained="$trained taylor-$kept=$OUT/tuned/taylor-$kept.tuned.st avg-$kept=$OUT/tuned/avg-$kept.tuned.st"
done
measure figure5 $untrained
measure figure6 $trained

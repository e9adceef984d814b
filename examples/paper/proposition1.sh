#!/bin/sh
# The figures of B.1 and B.2.2: the conditions of Proposition 1, and the overlap of two ways to choose heads.
#
#   IMAGENET=... OPENOOD=... CIFAR=... sh examples/paper/proposition1.sh [imagenet|cifar100]
. "$(dirname "$0")/common.sh"

for set in ${1:-imagenet cifar100}; do
  images "$set"
  base_model
  circuits
  step "$OUT/scores.json" hydractl score "$BASE" --method taylor --order one-shot --data "$TRAIN" -o "$OUT/scores.json"
  removed=$((12 * (12 - KEEP)))
  some="--limit 512 --draws 16"
  if [ "$SMALL" ]; then removed=3 some="--limit 16 --draws 2"; fi
  step "$OUT/proposition1/proposition1.png" "$PYTHON" "$ANALYSES/proposition1.py" "$BASE" --data "$TEST" $some \
    --remove $removed --ranking "taylor=$OUT/scores.json" --ranking "circ-avg=$OUT/circuit.avg.json" \
    -o "$OUT/proposition1"
  step "$OUT/taylor.0.st" hydractl prune "$BASE" --method taylor --keep $KEEP --data "$TRAIN" --seed 0 \
    -o "$OUT/taylor.0.st"
  step "$OUT/taylor-global.st" hydractl prune "$BASE" --scores "$OUT/scores.json" --scope global --keep $KEEP \
    -o "$OUT/taylor-global.st"
  # hydractl --info says of this file how many heads its members have in common.
  step "$OUT/overlap.st" hydractl fuse "$OUT/taylor.0.st" "$OUT/taylor-global.st" "$OUT/avg.st" --merge none \
    -o "$OUT/overlap.st"
done

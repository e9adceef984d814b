#!/bin/sh
# Table 2, and with the same evaluation Tables 17, 18, 19 and 20: BERT-base on SST-2.
#
#   SST2=/data/sst2 TEXTS=/data/ood-texts AGNEWS=/data/agnews.csv sh examples/paper/table2.sh
. "$(dirname "$0")/common.sh"

texts
base_model
# Three trainings of the pretrained BERT with new classifiers; docs/paper.md says how else the paper may be read.
for seed in 0 1 2; do
  step "$OUT/deep.$seed.st" hydractl finetune "$BERT" --train "$TRAIN" --val "$VAL" --recipe sst2 --init head \
    --seed $seed $TEXT_BASE --resume -o "$OUT/deep.$seed.st"
  step "$OUT/lora.$seed.st" hydractl finetune "$BASE" --train "$TRAIN" --val "$VAL" --recipe sst2 --ensemble lora:4,8 \
    --seed $seed $TUNING --resume -o "$OUT/lora.$seed.st"
done
step "$OUT/lora.fused.st" hydractl fuse "$OUT/lora.0.st" "$OUT/lora.1.st" "$OUT/lora.2.st" -o "$OUT/lora.fused.st"
taylor_members
circuits
tuned taylor.0 taylor.1 taylor.2 acc ood avg
fused hydra-taylor taylor.0 taylor.1 taylor.2
fused hydra-circ acc ood avg
dropped
measure table2 "single=$BASE" "deep=$OUT/deep.0.st+$OUT/deep.1.st+$OUT/deep.2.st" "mc-dropout=$OUT/mc-dropout.pred.st" \
  "lora-single=$OUT/lora.0.st" "lora=$OUT/lora.fused.st" "taylor=$OUT/tuned/taylor.0.tuned.st" \
  "circ-avg=$OUT/tuned/avg.tuned.st" "hydra-taylor=$OUT/hydra-taylor.st" "hydra-circ=$OUT/hydra-circ.st"
beside 2 17 18 19 20

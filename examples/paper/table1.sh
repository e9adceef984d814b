#!/bin/sh
# Table 1, and with the same evaluation Tables 15, 16, 21, 22 and 23: ViT-B/16 on ImageNet-1K and CIFAR-100.
#
#   IMAGENET=/data/ilsvrc OPENOOD=/data/openood CIFAR=/data/cifar sh examples/paper/table1.sh [imagenet|cifar100]
#
# With IMAGENET21K=/data/imagenet21k/train the rows that the paper pretrains themselves are made, too: Packed-Ensembles,
# MIMO, and a deep ensemble of three pretrainings. Without it the deep ensemble is three trainings that start from the
# same checkpoint of ImageNet-21k.
. "$(dirname "$0")/common.sh"

# pretrained NAME ENSEMBLE FIRST: stage 1, from random weights on ImageNet-21k (C.1.1).
pretrained() {
  step "$RUNS/imagenet21k/$1.$3.st" hydractl finetune "$VIT_RANDOM" --train "$IMAGENET21K" --recipe base-imagenet21k \
    --reset-head --ensemble "$2" $LONG $RESUME -o "$RUNS/imagenet21k/$1.st"
}

for set in ${1:-imagenet cifar100}; do
  images "$set"
  base_model
  rows="single=$BASE"

  if [ "$IMAGENET21K" ]; then
    pretrained deep deep:3 0
    for seed in 0 1 2; do
      step "$OUT/deep.$seed.st" hydractl finetune "$RUNS/imagenet21k/deep.$seed.st" --train "$TRAIN" --val "$VAL" \
        --recipe $BASE_RECIPE $BASE_STEPS $RESUME -o "$OUT/deep.$seed.st"
    done
    pretrained packed packed:3,2 1
    for member in 1 2 3; do
      step "$OUT/packed.$member.st" hydractl finetune "$RUNS/imagenet21k/packed.$member.st" --train "$TRAIN" \
        --val "$VAL" --recipe $BASE_RECIPE $BASE_STEPS $RESUME -o "$OUT/packed.$member.st"
    done
    step "$OUT/packed.st" hydractl fuse "$OUT/packed.1.st" "$OUT/packed.2.st" "$OUT/packed.3.st" --merge none \
      -o "$OUT/packed.st"
    pretrained mimo mimo:3,0.5,4 1
    step "$OUT/mimo.1.st" hydractl finetune "$RUNS/imagenet21k/mimo.1.st" --train "$TRAIN" --val "$VAL" \
      --recipe $BASE_RECIPE --ensemble mimo:3,0.5,4 $BASE_STEPS $RESUME -o "$OUT/mimo.st"
    step "$OUT/mimo.fused.st" hydractl fuse "$OUT/mimo.1.st" "$OUT/mimo.2.st" "$OUT/mimo.3.st" -o "$OUT/mimo.fused.st"
    rows="$rows packed=$OUT/packed.st mimo=$OUT/mimo.fused.st"
  else
    step "$OUT/deep.0.st" hydractl finetune "$VIT" --train "$TRAIN" --val "$VAL" --recipe $BASE_RECIPE --init head \
      --ensemble deep:3 $BASE_STEPS $RESUME -o "$OUT/deep.st"
  fi
  rows="$rows deep=$OUT/deep.0.st+$OUT/deep.1.st+$OUT/deep.2.st"

  # Adapters on the single model (C.1.4). The spread of BatchEnsemble's factors is not in the paper.
  step "$OUT/batch.0.st" hydractl finetune "$BASE" --train "$TRAIN" --val "$VAL" --recipe $BASE_RECIPE --no-reset-head \
    --ensemble batch-ensemble:0.1,3 $BASE_STEPS $RESUME -o "$OUT/batch.st"
  step "$OUT/batch-ensemble.st" hydractl fuse "$OUT/batch.0.st" "$OUT/batch.1.st" "$OUT/batch.2.st" --merge none \
    -o "$OUT/batch-ensemble.st"
  step "$OUT/lora.0.st" hydractl finetune "$BASE" --train "$TRAIN" --val "$VAL" --recipe $BASE_RECIPE --no-reset-head \
    --ensemble lora:4,8,3 $BASE_STEPS $RESUME -o "$OUT/lora.st"
  step "$OUT/lora.fused.st" hydractl fuse "$OUT/lora.0.st" "$OUT/lora.1.st" "$OUT/lora.2.st" -o "$OUT/lora.fused.st"
  rows="$rows batch-ensemble=$OUT/batch-ensemble.st lora-single=$OUT/lora.0.st lora=$OUT/lora.fused.st"

  # Pruned models, then fine-tuned by one recipe (D.2).
  step "$OUT/oba.st" hydractl prune "$BASE" --weights $WEIGHTS --method oba --data "$TRAIN" $OBA -o "$OUT/oba.st"
  taylor_members
  circuits
  tuned oba taylor.0 taylor.1 taylor.2 acc ood avg
  fused hydra-taylor taylor.0 taylor.1 taylor.2
  fused hydra-circ acc ood avg
  rows="$rows oba=$OUT/tuned/oba.tuned.st taylor=$OUT/tuned/taylor.0.tuned.st circ-avg=$OUT/tuned/avg.tuned.st"
  rows="$rows hydra-taylor=$OUT/hydra-taylor.st hydra-circ=$OUT/hydra-circ.st"

  dropped
  measure table1 $rows "mc-dropout=$OUT/mc-dropout.pred.st"

  if [ "$SET" = imagenet ]; then beside 1-imagenet 15 21 22; else beside 1-cifar100 16 23; fi
done

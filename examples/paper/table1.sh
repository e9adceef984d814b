#!/bin/sh
# Table 1, and with the same evaluation Tables 15, 16, 21, 22 and 23: ViT-B/16 on ImageNet-1K and CIFAR-100.
#
#   IMAGENET=/data/ilsvrc OPENOOD=/data/openood CIFAR=/data/cifar sh examples/paper/table1.sh [imagenet|cifar100]
#
# With IMAGENET21K=/data/imagenet21k/train the rows that the paper pretrains themselves are made, too: Packed-Ensembles,
# MIMO, and a deep ensemble of three pretrainings. Without it the deep ensemble is three trainings that start from the
# same checkpoint of ImageNet-21k.
. "$(dirname "$0")/common.sh"

# pretrained NAME LAST OPTION...: stage 1, from random weights on ImageNet-21k (C.1.1). LAST is the last file written.
pretrained() {
  name=$1 last=$2
  shift 2
  step "$RUNS/imagenet21k/$last" hydractl finetune "$VIT_RANDOM" --train "$IMAGENET21K" --recipe base-imagenet21k \
    --reset-head "$@" --resume -o "$RUNS/imagenet21k/$name"
}

# by_parts N OPTION...: these options, with each batch computed in N parts.
by_parts() {
  parts=$1
  shift
  echo "$*" | sed "s/--batch-size $BATCH/--batch-size $((BATCH / parts)) --accumulate $parts/"
}

# adapted NAME MODEL OPTION...: three members that train adapters on a model, as $OUT/NAME.SEED.st.
adapted() {
  name=$1 model=$2
  shift 2
  for seed in 0 1 2; do
    step "$OUT/$name.$seed.st" hydractl finetune "$model" --train "$TRAIN" --val "$VAL" --recipe $BASE_RECIPE "$@" \
      --seed $seed $BASE_STEPS --resume -o "$OUT/$name.$seed.st"
  done
}

for set in ${1:-imagenet cifar100}; do
  images "$set"
  base_model
  rows="single=$BASE"

  if [ "$IMAGENET21K" ]; then
    for seed in 0 1 2; do
      pretrained deep.$seed.st deep.$seed.st --seed $seed $LONG
      step "$OUT/deep.$seed.st" hydractl finetune "$RUNS/imagenet21k/deep.$seed.st" --train "$TRAIN" --val "$VAL" \
        --recipe $BASE_RECIPE $BASE_STEPS --resume -o "$OUT/deep.$seed.st"
    done
    # Packed-Ensembles hold twice, MIMO four times the activations of the model: these batches fit on 80 GB.
    pretrained packed.st packed.3.st --ensemble packed:3,2 $(by_parts 2 $LONG)
    for member in 1 2 3; do
      step "$OUT/packed.$member.st" hydractl finetune "$RUNS/imagenet21k/packed.$member.st" --train "$TRAIN" \
        --val "$VAL" --recipe $BASE_RECIPE $BASE_STEPS --resume -o "$OUT/packed.$member.st"
    done
    step "$OUT/packed.st" hydractl fuse "$OUT/packed.1.st" "$OUT/packed.2.st" "$OUT/packed.3.st" --merge none \
      -o "$OUT/packed.st"
    pretrained mimo.st mimo.3.st --ensemble mimo:3,0.5,4 $(by_parts 4 $LONG)
    step "$OUT/mimo.3.st" hydractl finetune "$RUNS/imagenet21k/mimo.1.st" --train "$TRAIN" --val "$VAL" \
      --recipe $BASE_RECIPE --ensemble mimo:3,0.5,4 $(by_parts 4 $BASE_STEPS) --resume -o "$OUT/mimo.st"
    step "$OUT/mimo.fused.st" hydractl fuse "$OUT/mimo.1.st" "$OUT/mimo.2.st" "$OUT/mimo.3.st" -o "$OUT/mimo.fused.st"
    rows="$rows packed=$OUT/packed.st mimo=$OUT/mimo.fused.st"
  else
    for seed in 0 1 2; do
      step "$OUT/deep.$seed.st" hydractl finetune "$PRETRAINED" --train "$TRAIN" --val "$VAL" --recipe $BASE_RECIPE \
        --init head --seed $seed $BASE_STEPS --resume -o "$OUT/deep.$seed.st"
    done
  fi
  rows="$rows deep=$OUT/deep.0.st+$OUT/deep.1.st+$OUT/deep.2.st"

  # BatchEnsemble on the checkpoint of ImageNet-21k, LoRA on the single model (C.1.4). The spread of BatchEnsemble's
  # factors is not in the paper.
  adapted batch "$PRETRAINED" --init head --ensemble batch-ensemble:0.1
  step "$OUT/batch-ensemble.st" hydractl fuse "$OUT/batch.0.st" "$OUT/batch.1.st" "$OUT/batch.2.st" --merge none \
    -o "$OUT/batch-ensemble.st"
  adapted lora "$BASE" --no-reset-head --ensemble lora:4,8
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

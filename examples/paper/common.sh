# Read by the scripts of this folder (". common.sh"): where data and results are, and how a step is run.
#
# Each script is a list of steps, each with a file of its own. A step whose file is there is skipped, and a training, a
# search or predictions that were cut short go on where they were, so the same script goes on after a kill, and the
# scripts share what they have in common: a base model, circuits, trained members, predictions.
#
#   DRY=1    print the steps instead of running them: a command and its file each
#   SMALL=1  run all of them in one process, on tiny models and data that are made on the spot (runs/paper-small)
#   RUNS     the folder of the results (runs/paper)

set -eu

HERE=$(dirname "$0")
if [ "$HERE" = . ]; then HERE=$PWD; fi
ANALYSES=$(dirname "$HERE")/analyses
PYTHON=${PYTHON:-python}
SMALL=${SMALL:-}
DRY=${DRY:-}

# installed: end with a message unless Python has hydractl; without its environment that would be told days later.
installed() {
  "$PYTHON" -c "import hydractl" 2> /dev/null || {
    echo "$PYTHON has no hydractl: activate its environment, as in . .venv/bin/activate" >&2
    exit 2
  }
}

# --- paths to fill in: variables of the environment -------------------------------------------------------------------

if [ "$SMALL" ]; then
  RUNS=${RUNS:-runs/paper-small}
  MADE=$RUNS/data
  IMAGENET=$MADE/imagenet
  IMAGENET21K=$MADE/imagenet/train
  OPENOOD=$MADE/openood
  CIFAR_TRAIN="$MADE/cifar100.npz?from=60"
  CIFAR_VAL="$MADE/cifar100.npz?take=60"
  CIFAR_TEST=$MADE/cifar100-test.npz
  SST2=$MADE/sst2
  TEXTS=$MADE/texts
  LAION=$MADE/pairs.jsonl
  VIT="timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&embed_dim=48&depth=2&num_heads=12&mlp_ratio=2"
  VIT="$VIT&num_classes=0"
  VIT_RANDOM=$VIT
  BERT=$MADE/bert
  CLIP=$MADE/clip
  if [ ! "$DRY" ]; then
    installed
    mkdir -p "$RUNS"
    DRY=1 sh "$0" "$@" > "$RUNS/commands"
    exec "$PYTHON" "$HERE/play.py" "$RUNS/commands" --data "$MADE"
  fi
else
  RUNS=${RUNS:-runs/paper}
  IMAGENET21K=${IMAGENET21K:-}
  LAION=${LAION:-}
  VIT=${VIT:-timm:vit_base_patch16_224.orig_in21k}
  VIT_RANDOM="timm:vit_base_patch16_224?pretrained=0"
  BERT=${BERT:-hf:google-bert/bert-base-uncased}
  CLIP=${CLIP:-open_clip:ViT-B-32/laion2b_s34b_b79k}
fi

# --- settings: those of the paper where it gives them -----------------------------------------------------------------

if [ "$SMALL" ]; then
  VAL_SHARE=0.2
  BATCH=32
  BASE_STEPS="--steps 4 --lr 0.05 --batch-size 32"
  LONG="--steps 2 --lr 0.01 --batch-size 32"
  TUNING="--steps 2 --lr 0.01 --batch-size 32"
  TEXT_BASE="--epochs 1 --lr 1e-3 --batch-size 32"
  TEXT_TUNING="--epochs 1 --lr 1e-3 --batch-size 32"
  CAPTIONS="--batch-size 8 --accumulate 1"
  SEARCH="--batch-size 64"
  EVALUATION="--batch-size 128"
  BOOTSTRAP="--bootstrap 10"
  OBA="--samples 8 --weight-steps 2"
  CORRUPTIONS="contrast brightness"
  MAKERS=1
  TIMING="--rounds 2 --warmup 1"
  PASSES=2
  SST2_VAL=40
  SEEDS="0 1"
  REMOVED_FROM_CLIP=4
  MORE_REMOVED_FROM_CLIP=5
  DRAWN_FROM=12
  KEPT="10 6"
  ZERO_SHOT="imagenet cifar100 pets"
else
  VAL_SHARE=0.01                                      # of ImageNet's validation set (C.1.2)
  BATCH=${BATCH:-512}                                 # not in the paper
  WORKERS=${WORKERS:-8}
  FAST="--autocast bfloat16 --workers $WORKERS"
  BASE_STEPS="--batch-size $BATCH $FAST"
  LONG="--batch-size $BATCH $FAST"
  TUNING="--batch-size $BATCH $FAST"
  TEXT_BASE="--lr 8e-6 --batch-size 32"               # the rate of C.2; no batch size in the paper
  TEXT_TUNING="--batch-size 32"
  CAPTIONS="--batch-size ${PAIRS:-1500} --accumulate ${ACCUMULATE:-64} $FAST" # 96,000 pairs a step (D.3)
  SEARCH="--batch-size 256 --workers $WORKERS"
  EVALUATION="--batch-size 256 --workers $WORKERS"
  BOOTSTRAP="--bootstrap 1000"
  OBA="--samples 128"                                 # not in the paper
  CORRUPTIONS="gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur snow fog brightness"
  CORRUPTIONS="$CORRUPTIONS contrast elastic_transform pixelate jpeg_compression"
  MAKERS=$WORKERS
  TIMING="--rounds 100 --warmup 10"
  PASSES=10                                           # not in the paper
  SST2_VAL=3000                                       # C.2
  SEEDS="0 1 2 3 4 5 6 7"                             # Table 12
  REMOVED_FROM_CLIP=24                                # D.3
  MORE_REMOVED_FROM_CLIP=30                           # E.3.2
  DRAWN_FROM=100                                      # B.5
  KEPT="10 8 6 4"                                     # B.3
  ZERO_SHOT="imagenet cifar100 cifar10 food101 sun397 pets dtd eurosat caltech101"
fi

# Learning rates are those of the recipes, four of which try a grid on validation data. LR=0.01 takes one.
if [ "${LR:-}" ] && [ ! "$SMALL" ]; then
  BASE_STEPS="$BASE_STEPS --lr $LR"
  TUNING="$TUNING --lr $LR"
fi

# --- steps ------------------------------------------------------------------------------------------------------------

# need NAME WHAT: end with a message unless the variable is set.
need() {
  eval "value=\${$1:-}"
  [ "$value" ] || { echo "set $1 to $2, or SMALL=1 to try it out" >&2; exit 2; }
}

# line COMMAND...: print a command so that a shell would read it again.
line() {
  printed=
  for word in "$@"; do
    case $word in
      *[!A-Za-z0-9_./:=,+-]*) printed="$printed \"$word\"" ;;
      *) printed="$printed $word" ;;
    esac
  done
  printf '%s' "${printed# }"
}

# step OUTPUT COMMAND...: run a command unless its output is there. Where a command writes several files, OUTPUT is the
# one that it writes last. All of them appear under their names when they are whole.
step() {
  output=$1
  shift
  if [ "$DRY" ]; then
    printf '%s  # %s\n' "$(line "$@")" "$output"
  elif [ ! -e "$output" ]; then
    mkdir -p "$(dirname "$output")"
    line "$@"
    echo
    "$@"
  fi
}

# plan WORD...: say how many steps of each kind this script has left; docs/paper.md says what they cost.
plan() {
  planned=$(DRY=1 sh "$0" "$@") || exit
  printf '%s\n' "$planned" | sort -u > "$RUNS/plan"
  while read -r planned; do
    [ -e "${planned##*  # }" ] || printf '%s\n' "$planned"
  done < "$RUNS/plan" > "$RUNS/left"
  echo "$(wc -l < "$RUNS/plan") steps; left are these (DRY=1 prints them, docs/paper.md has what they cost):"
  cut -d ' ' -f 1,2 "$RUNS/left" | sort | uniq -c
}

# have FILE: whether another script has made it. The commands that DRY=1 prints are those for when it has.
have() {
  [ -e "$1" ] || { [ "$DRY" ] && [ ! "$SMALL" ]; }
}

# beside TABLE...: print tables of the paper, with the figures measured here below those printed there.
beside() {
  [ "$DRY" ] || rm -f "$RUNS/tables/$1.md"  # it shows what is there by now
  step "$RUNS/tables/$1.md" "$PYTHON" "$HERE/beside.py" "$@" --runs "$RUNS" -o "$RUNS/tables/$1.md"
}

if [ ! "$DRY" ]; then
  mkdir -p "$RUNS"
  plan "$@"
  installed
fi

# --- data sets, and what the scripts about them share -----------------------------------------------------------------

# listed BENCHMARK LIST FOLDER: the SPEC of a list of OpenOOD v1.5, whose paths start from images_FOLDER.
listed() {
  printf '%s' "$OPENOOD/benchmark_imglist/$1/$2.txt?root=$OPENOOD/images_$3"
}

# of_benchmark BENCHMARK GROUP FOLDER NAME...: some of its OOD test sets, as options of eval.
of_benchmark() {
  benchmark=$1 group=$2 folder=$3
  shift 3
  for name in "$@"; do printf ' --ood %s:%s=%s' "$name" "$group" "$(listed "$benchmark" "test_$name" "$folder")"; done
}

# openood_sets BENCHMARK [official]: all its OOD test sets. The paper leaves out other images of the set that circuits
# are chosen on (OpenImage-O, TinyImageNet); official has them, as OpenOOD does.
openood_sets() {
  official=${2:-}
  case $1 in
    imagenet*)
      of_benchmark "$1" near largescale ssb_hard ninco
      of_benchmark "$1" far largescale inaturalist
      of_benchmark "$1" far classic textures
      [ ! "$official" ] || of_benchmark "$1" far largescale openimage_o
      ;;
    *)
      if [ "$1" = cifar10 ]; then other=cifar100; else other=cifar10; fi
      of_benchmark "$1" near classic $other
      [ ! "$official" ] || of_benchmark "$1" near classic tin
      of_benchmark "$1" far classic mnist svhn texture places365
      ;;
  esac
}

# openood_val BENCHMARK: its OOD validation set.
openood_val() {
  case $1 in
    imagenet*) listed "$1" val_openimage_o largescale ;;
    *) listed "$1" val_tin classic ;;
  esac
}

# text_sets GROUP NAME...: OOD test sets of texts, each the file of its name in the folder of texts.
text_sets() {
  group=$1
  shift
  for name in "$@"; do printf ' --ood %s:%s=%s' "$name" "$group" "$TEXTS/$name.${TEXTS_ENDING:-tsv}"; done
}

# images imagenet|cifar100: the variables of a data set of images.
images() {
  SET=$1
  OUT=$RUNS/$SET
  need OPENOOD "OpenOOD's folder, as its scripts/download/download.py leaves it"
  OOD=$(openood_sets "$SET")
  OOD_VAL=$(openood_val "$SET")
  LENGTH=
  if [ "$SET" = imagenet ]; then
    need IMAGENET "the folder of ILSVRC 2012 with train/ and val/, each a folder of class folders"
    TRAIN=$IMAGENET/train
    VAL="$IMAGENET/val?fraction=0:$VAL_SHARE"
    TEST="$IMAGENET/val?fraction=$VAL_SHARE:1"
    BASE_RECIPE=base-imagenet1k
    RECIPE=imagenet1k
    CROP=crop_pct=0.875 # of 256 pixels 224 (C.1.2)
    KEEP=8
    WEIGHTS=0.891
  else
    if [ ! "$SMALL" ]; then
      need CIFAR "the folder that holds cifar-100-python/, as torchvision leaves it"
      # The paper names no validation set: 2 % of the training set. All 10,000 test images.
      CIFAR_TRAIN="torchvision:CIFAR100/train?root=$CIFAR&fraction=0.02:1"
      CIFAR_VAL="torchvision:CIFAR100/train?root=$CIFAR&fraction=0:0.02"
      CIFAR_TEST="torchvision:CIFAR100/test?root=$CIFAR"
    fi
    TRAIN=$CIFAR_TRAIN
    VAL=$CIFAR_VAL
    TEST=$CIFAR_TEST
    BASE_RECIPE=base-cifar100
    RECIPE=cifar100
    if [ "$SMALL" ]; then RECIPE="cifar100 --train-last 1"; fi # the model has two blocks
    CROP="crop_pct=1.0&crop_mode=squash" # resized to 224 (C.1.3)
    KEEP=10
    WEIGHTS=0.94
  fi
  case $VIT in
    timm:*[?]*) PRETRAINED="$VIT&$CROP" ;;
    timm:*) PRETRAINED="$VIT?$CROP" ;;
    *) PRETRAINED=$VIT ;;
  esac
}

# texts: the variables of SST-2 (C.2).
texts() {
  SET=sst2
  OUT=$RUNS/sst2
  need SST2 "the folder of GLUE's SST-2 with train.tsv and dev.tsv"
  need TEXTS "the folder with a file for each OOD set of texts (docs/paper.md)"
  OOD="$(text_sets near yelp amazon)$(text_sets far 20ng trec mnli rte wmt16)"
  if [ "$SMALL" ]; then AGNEWS=$TEXTS/agnews.tsv; fi
  need AGNEWS "a file of AG News, the OOD validation texts"
  OOD_VAL=$AGNEWS
  LENGTH="--max-length 128"
  TRAIN="$SST2/train.tsv?from=$SST2_VAL"
  VAL="$SST2/train.tsv?take=$SST2_VAL"
  TEST=$SST2/dev.tsv
  RECIPE=sst2
  TUNING=$TEXT_TUNING
  KEEP=6
}

# base_model: the single model (C.1.2, C.1.3, C.2); BASE_IMAGENET, BASE_CIFAR100 or BASE_SST2 name one that is there.
base_model() {
  case $SET in
    imagenet) BASE=${BASE_IMAGENET:-} ;;
    cifar100) BASE=${BASE_CIFAR100:-} ;;
    sst2) BASE=${BASE_SST2:-} ;;
  esac
  [ "$BASE" ] && return
  BASE=$OUT/base.st
  if [ "$SET" = sst2 ]; then
    step "$BASE" hydractl finetune "$BERT" --train "$TRAIN" --val "$VAL" --recipe sst2 --init head $TEXT_BASE --resume \
      -o "$BASE"
  else
    step "$BASE" hydractl finetune "$PRETRAINED" --train "$TRAIN" --val "$VAL" --recipe $BASE_RECIPE $BASE_STEPS --resume \
      -o "$BASE"
  fi
}

# circuits: for accuracy, for OOD detection and for both, and the models that they leave (D.1.2).
circuits() {
  step "$OUT/circuit.avg.json" hydractl extract-circuit "$BASE" --val "$VAL" --ood-val "$OOD_VAL" \
    --objective acc,ood,avg --keep $KEEP $LENGTH $SEARCH --resume -o "$OUT/circuit.json"
  for objective in acc ood avg; do
    step "$OUT/$objective.st" hydractl prune "$BASE" --circuit "$OUT/circuit.$objective.json" -o "$OUT/$objective.st"
  done
}

# taylor_members: three models pruned by Taylor scores, of a calibration sample each (D.1.1).
taylor_members() {
  for seed in 0 1 2; do
    step "$OUT/taylor.$seed.st" hydractl prune "$BASE" --method taylor --keep $KEEP --data "$TRAIN" $LENGTH \
      --seed $seed -o "$OUT/taylor.$seed.st"
  done
}

# circuit_to_draw_from: the ranking of CircAvg for more heads than are removed, to draw from (B.5).
circuit_to_draw_from() {
  REMOVED=48
  if [ "$SMALL" ]; then REMOVED=8; fi
  step "$OUT/circuit-drawn.json" hydractl extract-circuit "$BASE" --val "$VAL" --ood-val "$OOD_VAL" --objective avg \
    --budget $DRAWN_FROM $SEARCH --resume -o "$OUT/circuit-drawn.json"
}

# drawn SEED...: the models that a draw of heads leaves, as $OUT/drawn.SEED.st.
drawn() {
  for seed in "$@"; do
    step "$OUT/drawn.$seed.st" hydractl prune "$BASE" --circuit "$OUT/circuit-drawn.json" --remove $REMOVED \
      --sample-from $DRAWN_FROM --seed $seed -o "$OUT/drawn.$seed.st"
  done
}

# tuned NAME...: these pruned models fine-tuned (D.2), as $OUT/tuned/NAME.tuned.st; by_seed has marked those of others.
tuned() {
  for name in "$@"; do
    step "$OUT/tuned/$name.tuned$MARK.st" hydractl finetune "$OUT/$name.st" --train "$TRAIN" --val "$VAL" \
      --recipe $RECIPE $TUNING --seed $SEED --resume -o "$OUT/tuned/$name.tuned$MARK.st"
  done
}

# by_seed N: of what tuned and fused are to make, the seed of the training.
by_seed() {
  SEED=$1
  MARK=.seed$1
  if [ "$SEED" = 0 ]; then MARK=; fi
}
by_seed 0

# fused NAME MEMBER...: fine-tuned members in one model, with everything but attention and classifiers averaged (4.2).
fused() {
  fused_as=$1
  shift
  members=
  for member in "$@"; do members="$members $OUT/tuned/$member.tuned$MARK.st"; done
  step "$OUT/$fused_as$MARK.st" hydractl fuse $members --merge mlp,norm,embed -o "$OUT/$fused_as$MARK.st"
}

# predicted FILE MODEL OPTION...: the logits of a model on the test set and the OOD sets.
predicted() {
  file=$1 model=$2
  shift 2
  step "$file" hydractl eval "$model" "$@" --test "$TEST" $OOD $LENGTH $EVALUATION --resume --predictions "$file"
}

# measure NAME ROW=MODEL...: these rows, as $OUT/NAME.json. Each MODEL is run once, for all tables: its predictions are
# kept in $OUT/predictions.
measure() {
  measured_as=$1
  shift
  stored=
  for row in "$@"; do
    model=${row#*=}
    case $model in
      *.pred.st) file=$model ;;
      *)
        # The file has the names of all members.
        members=
        for member in $(printf '%s' "$model" | tr + ' '); do
          member=${member#"$OUT/"}
          members=$members+${member%.st}
        done
        file=$OUT/predictions/$(printf '%s' "${members#+}" | tr -c 'A-Za-z0-9.-' _).pred.st
        predicted "$file" "$model"
        ;;
    esac
    stored="$stored ${row%%=*}=$file"
  done
  step "$OUT/$measured_as.json" hydractl eval $stored $BOOTSTRAP -o "$OUT/$measured_as.json"
}

# dropped: MC dropout of the single model, as predictions.
dropped() {
  predicted "$OUT/mc-dropout.pred.st" "$BASE" --mc-dropout 0.1 --passes $PASSES
}

# --- zero-shot classification -----------------------------------------------------------------------------------------

# zero_shot NAME: labels, test data, training data of ViLU and OOD sets of one of the nine data sets (C.3). Of those
# without a test part, half is tested.
zero_shot() {
  LABELS=$1
  outside=
  if [ "$SMALL" ]; then
    LABELS=$MADE/$1.txt
    # Other images for each: the mean over data sets refuses one that is there twice.
    case $1 in
      imagenet) TEST="$CIFAR_TEST?part=1/3" ;;
      cifar100) TEST="$CIFAR_TEST?part=2/3" ;;
      *) TEST="$CIFAR_TEST?part=3/3" ;;
    esac
    TRAIN=$CIFAR_TRAIN
  fi
  case $1 in
    imagenet) outside=$(openood_sets imagenet) ;;
    cifar100) outside=$(openood_sets cifar100 official) ;; # whose TinyImageNet only this table counts
  esac
  [ "$SMALL" ] && return
  case $1 in
    imagenet) TEST="$IMAGENET/val?fraction=$VAL_SHARE:1" TRAIN=$IMAGENET/train ;;
    cifar100) TEST=$CIFAR_TEST TRAIN=$CIFAR_TRAIN ;;
    cifar10) zero_shot_parts CIFAR10/test CIFAR10/train ;;
    food101) zero_shot_parts Food101/test Food101/train ;;
    pets) zero_shot_parts OxfordIIITPet/test OxfordIIITPet/trainval ;;
    dtd) zero_shot_parts DTD/test DTD/train ;;
    sun397) zero_shot_halves "torchvision:SUN397?root=$TORCHVISION&" ;;
    eurosat) zero_shot_halves "torchvision:EuroSAT?root=$TORCHVISION&" ;;
    caltech101) zero_shot_halves "$TORCHVISION/caltech101/101_ObjectCategories?" ;;
  esac
}

zero_shot_parts() {
  TEST="torchvision:$1?root=$TORCHVISION"
  TRAIN="torchvision:$2?root=$TORCHVISION"
}

zero_shot_halves() {
  TEST="$1fraction=0:0.5"
  TRAIN="$1fraction=0.5:1"
}

# clip_data: what both scripts about CLIP choose on.
clip_data() {
  OUT=$RUNS/clip
  images cifar100
  images imagenet
  OUT=$RUNS/clip
  CLIP_VAL=$VAL
  CLIP_TRAIN=$IMAGENET/train
  CLIP_LABELS=imagenet
  if [ "$SMALL" ]; then
    CLIP_VAL=$CIFAR_VAL
    CLIP_TRAIN=$CIFAR_TRAIN
    CLIP_LABELS=$MADE/imagenet.txt
  else
    need TORCHVISION "the folder of torchvision's data sets: CIFAR-10, Food101, SUN397, Pets, DTD, EuroSAT, Caltech101"
  fi
}

# clip_circuits: heads of both towers in one ranking (D.3).
clip_circuits() {
  step "$OUT/circuit.avg.json" hydractl extract-circuit "$CLIP" --labels "$CLIP_LABELS" --val "$CLIP_VAL" \
    --ood-val "$OOD_VAL" --objective acc,ood,avg --budget $MORE_REMOVED_FROM_CLIP $SEARCH --resume -o "$OUT/circuit.json"
  for objective in acc ood avg; do
    step "$OUT/$objective.st" hydractl prune "$CLIP" --circuit "$OUT/circuit.$objective.json" \
      --remove $REMOVED_FROM_CLIP -o "$OUT/$objective.st"
  done
  step "$OUT/hydra-circ.st" hydractl fuse "$OUT/acc.st" "$OUT/ood.st" "$OUT/avg.st" -o "$OUT/hydra-circ.st"
}

# measure_zero_shot PREFIX OPTION... ROW=MODEL...: every data set, as $OUT/PREFIXNAME.json, and their mean.
measure_zero_shot() {
  prefix=$1
  shift
  answers=
  for name in $ZERO_SHOT; do
    zero_shot "$name"
    if [ "$WITH_VILU" ]; then
      step "$OUT/vilu.$name.pred.st" hydractl eval "vilu=$CLIP" --labels "$LABELS" --ood-score vilu-scaled --train "$TRAIN" \
        --test "$TEST" $outside $EVALUATION --resume --predictions "$OUT/vilu.$name.pred.st"
      step "$OUT/vilu.$name.calibration.json" hydractl calibrate "vilu=$OUT/vilu.$name.pred.st" --ood-score vilu-scaled \
        -o "$OUT/vilu.$name.calibration.json"
      vilu="vilu=$OUT/vilu.$name.pred.st --calibration $OUT/vilu.$name.calibration.json"
    else
      vilu=
    fi
    step "$OUT/$prefix$name.json" hydractl eval "$@" $vilu --labels "$LABELS" --test "$TEST" $outside $EVALUATION \
      $BOOTSTRAP -o "$OUT/$prefix$name.json"
    answers="$answers $OUT/$prefix$name.json"
  done
  step "$OUT/${prefix}mean.json" hydractl report $answers --over data -o "$OUT/${prefix}mean.json"
}

#!/bin/sh
# Table 6: circuits for OOD detection and for accuracy, each alone and not trained, on ImageNet-1K.
#
#   IMAGENET=... OPENOOD=... sh examples/paper/table6.sh
. "$(dirname "$0")/common.sh"

images imagenet
base_model
circuits
measure table6 "circ-ood=$OUT/ood.st" "circ-acc=$OUT/acc.st"
beside 6

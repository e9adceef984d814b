#!/bin/sh
# Table 5 and Figure 4: ID and OOD centroids of heads at the class token, CIFAR-100.
#
#   OPENOOD=... CIFAR=... sh examples/paper/table5.sh
. "$(dirname "$0")/common.sh"

images cifar100
base_model
circuits
# 2,000 images of each set.
step "$OUT/table5/head_distances.png" "$PYTHON" "$ANALYSES/head_distances.py" "$BASE" "$OUT/ood.st" --data "$TEST" \
  --ood "texture=$(listed cifar100 test_texture classic)" \
  --ood "mnist=$(listed cifar100 test_mnist classic)" \
  --ood "svhn=$(listed cifar100 test_svhn classic)" \
  --ood "places365=$(listed cifar100 test_places365 classic)" \
  --ood "cifar10=$(listed cifar100 test_cifar10 classic)" \
  --ranking "ood=$OUT/circuit.ood.json" --limit 2000 -o "$OUT/table5"
beside 5

#!/bin/sh
# Table 5 and Figure 4: ID and OOD centroids of heads at the class token, CIFAR-100.
#
#   OPENOOD=... CIFAR=... sh examples/paper/table5.sh
. "$(dirname "$0")/common.sh"

images cifar100
base_model
circuits
# A list is opened as OpenOOD's suite opens it; 2,000 images of each set.
lists=$OPENOOD/benchmark_imglist/cifar100
step "$OUT/table5/head_distances.png" "$PYTHON" "$ANALYSES/head_distances.py" "$BASE" "$OUT/ood.st" --data "$TEST" \
  --ood "texture=$lists/test_texture.txt?root=$OPENOOD/images_classic" \
  --ood "mnist=$lists/test_mnist.txt?root=$OPENOOD/images_classic" \
  --ood "svhn=$lists/test_svhn.txt?root=$OPENOOD/images_classic" \
  --ood "places365=$lists/test_places365.txt?root=$OPENOOD/images_classic" \
  --ood "cifar10=$lists/test_cifar10.txt?root=$OPENOOD/images_classic" \
  --ranking "ood=$OUT/circuit.ood.json" --limit 2000 -o "$OUT/table5"
beside 5

"""Data sets: readers of published layouts, the user's own manifest, and what is built from them."""

from steelyard.balance.split import stratified_split
from steelyard.data.builders import (
    exponential_counts,
    exponential_long_tail,
    keep_labels,
    keep_positives,
    keep_single_positive,
    pareto_counts,
    pareto_long_tail,
)
from steelyard.data.dataset import ArrayDataset, ImageDataset
from steelyard.data.files import DataError
from steelyard.data.images import BadImage
from steelyard.data.inputs import Inputs, open_inputs
from steelyard.data.opening import Opened, open_data
from steelyard.data.part import open_part
from steelyard.data.readers.arff import arff
from steelyard.data.readers.cifar import cifar10, cifar100
from steelyard.data.readers.coco import coco
from steelyard.data.readers.cub import cub
from steelyard.data.readers.mlt import coco_mlt, mlt_labels, voc_mlt
from steelyard.data.readers.mnist import mnist
from steelyard.data.readers.multi_mnist import (
    balanced_pairs,
    imbalanced_pairs,
    multi_mnist,
    multi_mnist_digits,
    multi_mnist_held_out,
)
from steelyard.data.readers.npz import npz
from steelyard.data.readers.nus_wide import nus_wide
from steelyard.data.readers.open_images import open_images
from steelyard.data.readers.regions import RegionDataset, WordTable, convert_regions
from steelyard.data.readers.vispr import vispr
from steelyard.data.readers.voc import voc
from steelyard.data.readers.vqa import vqa
from steelyard.data.readers.wider_attribute import wider_attribute
from steelyard.data.subset import Subset
from steelyard.data.tables.read import table

__all__ = [
    "ArrayDataset",
    "BadImage",
    "DataError",
    "ImageDataset",
    "Inputs",
    "Opened",
    "RegionDataset",
    "Subset",
    "WordTable",
    "arff",
    "balanced_pairs",
    "cifar10",
    "cifar100",
    "coco",
    "coco_mlt",
    "convert_regions",
    "cub",
    "exponential_counts",
    "exponential_long_tail",
    "imbalanced_pairs",
    "keep_labels",
    "keep_positives",
    "keep_single_positive",
    "mlt_labels",
    "mnist",
    "multi_mnist",
    "multi_mnist_digits",
    "multi_mnist_held_out",
    "npz",
    "nus_wide",
    "open_data",
    "open_images",
    "open_inputs",
    "open_part",
    "pareto_counts",
    "pareto_long_tail",
    "stratified_split",
    "table",
    "vispr",
    "voc",
    "voc_mlt",
    "vqa",
    "wider_attribute",
]

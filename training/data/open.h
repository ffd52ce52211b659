// Opens a training set and a test set from a folder of any supported format.
#pragma once

#include <cstdint>
#include <string>

#include "training/data/image_dataset.h"

namespace gpipe::data {

// Opens the training set and the test set in `folder`. Recognises these
// formats, in this order:
//   data_batch_*.bin and test_batch.bin      CIFAR-10's binary format
//   train-images-idx3-ubyte and three more   MNIST's format, see mnist.h
//   train/<class>/ and test/ or val/         image folders
//   <class>/                                 image folder; the fraction
//                                            `held_out`, selected by `seed`, is
//                                            the test set
//
// Throws c10::ValueError if the folder has none of these formats, if a file of
// the set is damaged or missing, or if the two sets have different classes.
Split open_images(const std::string& folder, double held_out, uint64_t seed);

}  // namespace gpipe::data

// A training set and a test set from a folder, whatever its format.
#pragma once

#include <cstdint>
#include <string>

#include "data/image_dataset.h"

namespace gpipe::data {

// Recognises, in this order:
//   data_batch_*.bin and test_batch.bin      CIFAR-10's binary format
//   train-images-idx3-ubyte and three more   MNIST's, see mnist.h
//   train/<class>/ with test/ or val/ likewise   image folders
//   <class>/                                 image folder; a part `held_out`
//                                            of it, chosen by `seed`, is test
// c10::ValueError: none of these, a file of a set that is damaged or missing,
// or the two have other classes.
Split open_images(const std::string& folder, double held_out, uint64_t seed);

}  // namespace gpipe::data

#include "training/data/image.h"

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/from_blob.h>
#include <absl/strings/ascii.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

// jpeglib.h requires that FILE and size_t are declared before it.
#include <jerror.h>
#include <jpeglib.h>
#include <png.h>

#include "gpipe/base/files.h"

namespace gpipe::data {

// ---- Files

namespace {

// The limit prevents a header of a few bytes from claiming gigabytes.
constexpr int64_t kMaxPixels = int64_t{1} << 27;

constexpr std::string_view kPng("\x89PNG");  // first bytes of PNG files

// Rows of interleaved pixels, as the image libraries return them.
struct Pixels {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> bytes;  // [height, width, 3]
};

at::Tensor to_planes(Pixels pixels) {
  return at::from_blob(pixels.bytes.data(), {pixels.height, pixels.width, 3},
                       at::kByte)
      .permute({2, 0, 1})
      .clone(at::MemoryFormat::Contiguous);
}

void check_size(int64_t height, int64_t width, const std::string& name) {
  TORCH_CHECK_VALUE(height * width <= kMaxPixels, name, ": ", width, "x",
                    height, " pixels; at most ", kMaxPixels, " are decoded");
}

// The state of libjpeg's error handling. libjpeg reports errors by a call that
// must not return. An exception must not pass through its C frames, so
// leave_jpeg() jumps. No object with a destructor may be created between setjmp
// and the jump.
struct JpegErrors {
  jpeg_error_mgr manager;  // first member: libjpeg passes a pointer to it
  std::jmp_buf jump;
  char text[JMSG_LENGTH_MAX];
};

[[noreturn]] void leave_jpeg(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  errors->manager.format_message(info, errors->text);
  std::longjmp(errors->jump, 1);
}

// Treats two warnings as errors: those about pixels that libjpeg invented.
// Other warnings are common in photographs that look right.
void on_jpeg_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  const int code = info->err->msg_code;
  if (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER) leave_jpeg(info);
}

// Decodes into `pixels`. Returns false if that fails, with the reason in
// errors->text. All objects that own memory belong to the caller, because
// leave_jpeg() jumps over destructors.
bool decode_jpeg_into(std::string_view bytes, JpegErrors* errors,
                      Pixels* pixels, std::vector<uint8_t>* row) {
  jpeg_decompress_struct info;
  info.err = jpeg_std_error(&errors->manager);
  errors->manager.error_exit = leave_jpeg;
  errors->manager.emit_message = on_jpeg_message;
  if (setjmp(errors->jump) != 0) {
    jpeg_destroy_decompress(&info);
    return false;
  }
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()),
               bytes.size());
  jpeg_read_header(&info, TRUE);
  if (static_cast<int64_t>(info.image_width) * info.image_height > kMaxPixels) {
    std::snprintf(errors->text, sizeof(errors->text),
                  "%ux%u pixels are too many", info.image_width,
                  info.image_height);
    jpeg_destroy_decompress(&info);
    return false;
  }
  // libjpeg converts grey and YCbCr to RGB, but not CMYK.
  const bool cmyk =
      info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&info);
  pixels->height = info.output_height;
  pixels->width = info.output_width;
  pixels->bytes.resize(3 * pixels->height * pixels->width);
  row->resize(info.output_width * info.output_components);
  while (info.output_scanline < info.output_height) {
    uint8_t* out = &pixels->bytes[3 * pixels->width * info.output_scanline];
    JSAMPROW in = row->data();
    jpeg_read_scanlines(&info, &in, 1);
    for (int64_t x = 0; x < pixels->width; ++x) {
      for (int64_t channel = 0; channel < 3; ++channel) {
        // CMYK files come from Adobe's programs, which store inverse values.
        out[3 * x + channel] = cmyk ? in[4 * x + channel] * in[4 * x + 3] / 255
                                    : in[3 * x + channel];
      }
    }
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
  return true;
}

at::Tensor decode_jpeg(std::string_view bytes, const std::string& name) {
  JpegErrors errors;
  Pixels pixels;
  std::vector<uint8_t> row;
  TORCH_CHECK_VALUE(decode_jpeg_into(bytes, &errors, &pixels, &row), name,
                    ": broken JPEG file: ", errors.text);
  return to_planes(std::move(pixels));
}

// Returns a PNG file without the chunks that say which light its values stand
// for. libpng would convert the values; PIL and torchvision do not.
std::string without_colour_space(std::string_view bytes) {
  constexpr std::size_t kSignature = 8;
  std::string kept(bytes.substr(0, kSignature));
  bytes.remove_prefix(kept.size());
  // A chunk has the size of its data, a name, the data and a checksum.
  while (bytes.size() >= 12) {
    std::size_t data = 0;
    for (int k = 0; k < 4; ++k)
      data = data << 8 | static_cast<uint8_t>(bytes[k]);
    const std::string_view chunk = bytes.substr(0, data + 12);
    const std::string_view name = chunk.substr(4, 4);
    if (name != "gAMA" && name != "cHRM" && name != "iCCP" && name != "sRGB" &&
        name != "cICP") {
      kept += chunk;
    }
    bytes.remove_prefix(chunk.size());
  }
  return kept += bytes;
}

class Png {
 public:
  Png(std::string_view bytes, const std::string& name)
      : name_(name), bytes_(without_colour_space(bytes)) {
    info_.version = PNG_IMAGE_VERSION;
    const bool header =
        png_image_begin_read_from_memory(&info_, bytes_.data(), bytes_.size());
    TORCH_CHECK_VALUE(header, name, ": broken PNG file: ", info_.message);
    check_size(info_.height, info_.width, name);
    has_16_bits_ = (info_.format & PNG_FORMAT_FLAG_LINEAR) != 0;
  }
  bool has_16_bits() const { return has_16_bits_; }

  // Returns the pixels with 8 bits per value. May be called once.
  Pixels rgb() {
    // Without the flag, libpng takes 16 bits for linear light, and turns the
    // middle value into 186.
    info_.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
    const bool has_alpha = (info_.format & PNG_FORMAT_FLAG_ALPHA) != 0;
    info_.format = has_alpha ? PNG_FORMAT_RGBA : PNG_FORMAT_RGB;
    Pixels pixels{info_.height, info_.width, {}};
    auto& bytes = pixels.bytes;
    bytes.resize(PNG_IMAGE_SIZE(info_));
    finish(bytes.data());
    if (!has_alpha) return pixels;
    // libpng itself would draw on black in linear light.
    const std::size_t count = bytes.size() / 4;
    for (std::size_t k = 0; k < count; ++k) {
      const int alpha = bytes[4 * k + 3];
      for (std::size_t n = 0; n < 3; ++n) {
        bytes[3 * k + n] = (bytes[4 * k + n] * alpha + 127) / 255;
      }
    }
    bytes.resize(3 * count);
    return pixels;
  }

  // Returns the values with 16 bits, unchanged. May be called once.
  std::vector<uint16_t> rgb16() {
    info_.format = PNG_FORMAT_LINEAR_RGB;
    std::vector<uint16_t> values(PNG_IMAGE_SIZE(info_) / sizeof(uint16_t));
    finish(values.data());
    return values;
  }

 private:
  void finish(void* pixels) {
    const png_color black{0, 0, 0};
    const bool body =
        png_image_finish_read(&info_, &black, pixels,
                              /*row_stride=*/0, /*colormap=*/nullptr);
    TORCH_CHECK_VALUE(body, name_, ": broken PNG file: ", info_.message);
  }

  const std::string& name_;
  const std::string bytes_;  // libpng reads them until finish()
  struct Info : png_image {
    Info() : png_image{} {}
    ~Info() { png_image_free(this); }
    Info(const Info&) = delete;
    Info& operator=(const Info&) = delete;
  } info_;
  bool has_16_bits_ = false;
};

// `name`: the name used in errors.
at::Tensor decode_image(std::string_view bytes, const std::string& name) {
  if (bytes.starts_with("\xFF\xD8")) return decode_jpeg(bytes, name);
  if (bytes.starts_with(kPng)) return to_planes(Png(bytes, name).rgb());
  TORCH_CHECK_VALUE(false, name, ": neither a JPEG nor a PNG file (",
                    bytes.size(), " bytes)");
}

}  // namespace

bool has_image_name(const std::filesystem::path& path) {
  const std::string extension =
      absl::AsciiStrToLower(path.extension().string());
  return !path.filename().string().starts_with('.') &&
         (extension == ".jpg" || extension == ".jpeg" || extension == ".png");
}

void refuse_folder(const std::string& folder,
                   const std::filesystem::filesystem_error& error) {
  // The error of a folder inside may have no path.
  const std::string path = error.path1().string();
  TORCH_CHECK_VALUE(false, path.empty() ? folder : path,
                    ": cannot be read: ", error.code().message());
}

at::Tensor read_image(const std::string& path) {
  return decode_image(internal::read_file(path), path);
}

int64_t max_of_16_bits(const std::string& path) {
  const std::string bytes = internal::read_file(path);
  if (!bytes.starts_with(kPng)) return 0;
  Png png(bytes, path);
  if (!png.has_16_bits()) return 0;
  const auto values = png.rgb16();
  return *std::max_element(values.begin(), values.end());
}

// ---- Pixels

at::Tensor cut(const at::Tensor& planes, const Window& window) {
  return planes.narrow(1, window.top, window.height)
      .narrow(2, window.left, window.width);
}

at::Tensor resize(const at::Tensor& planes, int64_t height, int64_t width) {
  const at::Tensor values = planes.to(at::kFloat);
  if (planes.size(1) == height && planes.size(2) == width) return values;
  return at::_upsample_bilinear2d_aa(values.unsqueeze(0), {height, width},
                                     /*align_corners=*/false)
      .squeeze(0);
}

void check_image(const at::Tensor& image) {
  TORCH_CHECK_VALUE(image.dim() == 3 && image.size(0) == 3 &&
                        image.scalar_type() == at::kByte && image.numel() > 0,
                    "expected an image of bytes, [3, height, width], got ",
                    image.scalar_type(), " ", image.sizes());
}

void check_size(int64_t size) {
  TORCH_CHECK_VALUE(size > 0, "cannot make images of ", size, "x", size);
}

}  // namespace gpipe::data

// Converts a checkpoint of any known format to a folder for torch.distributed.checkpoint.
#include "unishard/converters/sink.hpp"
#include "unishard/converters/source.hpp"
#include "unishard/format/error.hpp"

#include <iostream>
#include <numeric>

namespace {

void convert(const std::string& input, const std::string& output) {
  using namespace unishard;
  Storage& storage = posix_storage();
  const auto source = converters::open_source(storage, input);
  const Catalog& catalog = source->catalog();
  const auto sink = converters::make_dcp_sink(storage, output, catalog);

  std::vector<std::size_t> same(catalog.tensors.size());
  std::iota(same.begin(), same.end(), std::size_t{0});
  const TransferOptions options = TransferOptions::within(std::uint64_t{256} << 20, 4);
  converters::copy({.source = source.get(), .target = &catalog, .tensor_map = same}, *sink,
                   options);
  source->verify_reads(options);  // the input's own checksums, before anything is visible
  sink->commit();
  for (const std::string& note : sink->notes()) std::cout << note << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: to_dcp CHECKPOINT FOLDER\n";
    return 2;
  }
  try {
    convert(argv[1], argv[2]);
  } catch (const unishard::Error& error) {
    std::cerr << error.what() << "\n" << error.hint() << "\n";
    return unishard::exit_status(error.code());
  }
}

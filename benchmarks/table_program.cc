// The main() function of a table of tables.h: that of the function TABLE, which
// table_program.bzl defines.
#include "benchmarks/harness/run.h"
#include "benchmarks/tables.h"

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_benchmark(argc, argv,
                                          gpipe::benchmarks::TABLE());
}

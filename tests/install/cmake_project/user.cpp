// A user of the installed C++ header: loads the model named, and is told of one that is not there.
#include <cstdio>
#include <string>

#include <headrace/headrace.hpp>

int main(int argc, char** argv) {
  if (argc != 2 || headrace_abi_version() != HEADRACE_ABI_VERSION) return 2;
  try {
    headrace::Options options;
    options.set("engine.threads", "1");
    headrace::Model model = headrace::Model::load(argv[1], options);
  } catch (const headrace::Error& error) {
    std::printf("error: %s\n", error.what());
    return 1;
  }
  try {
    headrace::Model::load("/nonexistent.gguf");
    return 3;
  } catch (const headrace::Error&) {
  }
  std::printf("loaded with %s\n", headrace_version());
  return 0;
}

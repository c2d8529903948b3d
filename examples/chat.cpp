// A conversation in the terminal: each line is a message, the reply streams. Ends with the input.
//   c++ -std=c++17 chat.cpp $(pkg-config --cflags --libs headrace) -o chat && ./chat model.gguf
#include <headrace/headrace.hpp>
#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: " << argv[0] << " MODEL\n";
    return 2;
  }
  try {
    const headrace::Model model = headrace::Model::load(argv[1]);
    const headrace::KVCache cache(model);
    headrace::Scheduler scheduler(model, cache);
    headrace::Session session(model, cache);

    headrace::Sampling sampling = model.sampling();
    sampling.temperature = 0.7f;
    sampling.top_p = 0.95f;

    std::string line;
    while (std::cout << "> " << std::flush, std::getline(std::cin, line)) {
      session.append_message("user", line);
      headrace::Request request(model);
      request.set_session(session).set_sampling(sampling).set_length(0, 512);
      scheduler.run(request, [](const headrace::Event& event) {
        std::cout << event.text() << std::flush;
        return true;
      });
      std::cout << "\n";
    }
  } catch (const headrace::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}

/* The shortest whole program in C: load a model, generate from a prompt, print the text as it comes.
 *   cc minimal.c $(pkg-config --cflags --libs headrace) -o minimal && ./minimal model.gguf "Once upon a time" */
#include <headrace/headrace.h>
#include <stdio.h>
#include <string.h>

static int fail(headrace_error* error) {
  fprintf(stderr, "error: %s: %s\n", headrace_error_get_place(error), headrace_error_get_message(error));
  headrace_error_destroy(error);
  return 1;
}

int main(int argc, char** argv) {
  headrace_error* error = NULL;
  headrace_model* model = NULL;
  headrace_scheduler* scheduler = NULL;
  headrace_request* request = NULL;
  uint64_t id = 0;
  int32_t has_work = 1, failed = 0;
  if (argc != 3) {
    fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
    return 2;
  }
  if (headrace_model_load(argv[1], strlen(argv[1]), NULL, NULL, NULL, &model, &error) ||
      headrace_scheduler_create(model, NULL, NULL, &scheduler, &error) ||
      headrace_request_create(model, &request, &error) ||
      headrace_request_add_text(request, argv[2], strlen(argv[2]), HEADRACE_ADD_SPECIAL, &error) ||
      headrace_request_set_length(request, 0, 64, &error) ||
      headrace_scheduler_submit(scheduler, request, &id, &error)) {
    failed = fail(error);
    has_work = 0;
  }
  while (has_work) {
    headrace_event* event = NULL;
    if (headrace_scheduler_step(scheduler, &has_work, &error)) {
      failed = fail(error);
      break;
    }
    while (headrace_event_next(scheduler, &event, NULL) == HEADRACE_OK && event != NULL) {
      size_t size = 0;
      const char* text = headrace_event_get_text(event, &size);
      fwrite(text, 1, size, stdout);
      fflush(stdout);
      headrace_event_destroy(event);
    }
  }
  printf("\n");
  headrace_request_destroy(request);
  headrace_scheduler_destroy(scheduler);
  headrace_model_destroy(model);
  return failed;
}

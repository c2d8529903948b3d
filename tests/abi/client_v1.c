/* A client of ABI version 1: the open structs as that version laid them out, written here a second time, so that a change of
 * the header alone cannot move both sides.   client_v1 LIBRARY COPY MODEL */
#include <dlfcn.h>
#include <headrace/headrace.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                     \
  do {                                                       \
    if (!(condition)) {                                      \
      printf("%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                              \
    }                                                        \
  } while (0)
#define OFFSET(type, field, offset) CHECK(offsetof(type, field) == (offset))

static int check_layouts(void) {
  CHECK(sizeof(headrace_model_info) == 56);
  OFFSET(headrace_model_info, max_position_embeddings, 16);
  OFFSET(headrace_model_info, weight_bytes, 32);
  OFFSET(headrace_model_info, num_threads, 48);
  OFFSET(headrace_model_info, has_chat_template, 52);
  CHECK(sizeof(headrace_kv_cache_stats) == 56);
  OFFSET(headrace_kv_cache_stats, num_blocks, 8);
  OFFSET(headrace_kv_cache_stats, pool_bytes, 48);
  CHECK(sizeof(headrace_sampling) == 64);
  OFFSET(headrace_sampling, temperature, 4);
  OFFSET(headrace_sampling, n, 36);
  OFFSET(headrace_sampling, seed, 40);
  OFFSET(headrace_sampling, reserved, 60);
  CHECK(sizeof(headrace_scheduler_stats) == 72);
  OFFSET(headrace_scheduler_stats, num_steps, 24);
  OFFSET(headrace_scheduler_stats, finished_requests, 64);
  CHECK(sizeof(headrace_usage) == 56);
  OFFSET(headrace_usage, output_tokens, 24);
  OFFSET(headrace_usage, total_ns, 48);
  return 0;
}

/* What a later client would pass: this version's struct and fields that this library does not know. */
struct later_sampling {
  headrace_sampling v1;
  uint64_t appended[2];
};

static int check_open_structs(const char* model_path) {
  headrace_model* model = NULL;
  headrace_request* request = NULL;
  headrace_model_info info;
  struct later_sampling later;
  headrace_sampling* sampling = &later.v1;
  CHECK(headrace_abi_version() == 1);
  CHECK(headrace_model_load(model_path, strlen(model_path), NULL, NULL, NULL, &model, NULL) == HEADRACE_OK);
  headrace_model_info_init(&info);
  CHECK(info.struct_size == 56);
  CHECK(headrace_model_get_info(model, &info, NULL) == HEADRACE_OK && info.vocab_size > 0 && info.struct_size == 56);
  info.struct_size = 0;
  CHECK(headrace_model_get_info(model, &info, NULL) == HEADRACE_INVALID_ARGUMENT);
  CHECK(headrace_request_create(model, &request, NULL) == HEADRACE_OK);
  memset(&later, 0, sizeof later);
  headrace_sampling_init(sampling);
  CHECK(sampling->struct_size == 64 && sampling->temperature == 0 && sampling->n == 1);
  CHECK(headrace_request_set_sampling(request, sampling, NULL) == HEADRACE_OK);
  sampling->struct_size = 60;
  CHECK(headrace_request_set_sampling(request, sampling, NULL) == HEADRACE_INVALID_ARGUMENT);
  sampling->struct_size = sizeof later;
  CHECK(headrace_request_set_sampling(request, sampling, NULL) == HEADRACE_OK);
  later.appended[1] = 1;
  CHECK(headrace_request_set_sampling(request, sampling, NULL) == HEADRACE_INVALID_ARGUMENT);
  headrace_request_destroy(request);
  headrace_model_destroy(model);
  return 0;
}

/* ISO C has no cast from an object pointer to a function pointer; POSIX promises that the bits are the same. */
static int find(void* handle, const char* name, void* function) {
  void* address = dlsym(handle, name);
  CHECK(address != NULL);
  memcpy(function, &address, sizeof address);
  return 0;
}

static int check_two_copies(const char* const* libraries, const char* model_path) {
  void* handles[2];
  char texts[2][16384];
  const char* (*version[2])(void);
  size_t needed[2];
  int i;
  for (i = 0; i < 2; ++i) {
    headrace_status (*inspect)(const char*, size_t, uint64_t, char*, size_t, size_t*, headrace_error**);
    handles[i] = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
    CHECK(handles[i] != NULL);
    CHECK(find(handles[i], "headrace_version", &version[i]) == 0);
    CHECK(find(handles[i], "headrace_model_inspect", &inspect) == 0);
    CHECK(inspect(model_path, strlen(model_path), 0, texts[i], sizeof texts[i], &needed[i], NULL) == HEADRACE_OK);
  }
  CHECK(handles[0] != handles[1] && version[0] != version[1]);
  CHECK(strcmp(version[0](), version[1]()) == 0);
  CHECK(needed[0] == needed[1] && memcmp(texts[0], texts[1], needed[0]) == 0);
  /* Each copy goes without the other. */
  CHECK(dlclose(handles[0]) == 0);
  CHECK(version[1]()[0] != '\0');
  CHECK(dlclose(handles[1]) == 0);
  return 0;
}

int main(int argc, char** argv) {
  const char* libraries[2];
  if (argc != 4) return 2;
  libraries[0] = argv[1];
  libraries[1] = argv[2];
  if (check_layouts() || check_open_structs(argv[3]) || check_two_copies(libraries, argv[3])) return 1;
  printf("client of version 1: layouts, sizes and two copies are as promised\n");
  return 0;
}

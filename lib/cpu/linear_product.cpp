#include "cpu/linear_product.h"

#include <algorithm>

namespace headrace {

void run_products(std::span<LinearProduct> products, ThreadPool& pool, const KernelTable& kernels) {
  const int threads = pool.num_threads();
  int64_t tasks = 0;
  for (LinearProduct& product : products) {
    product.end_task = tasks += product.weight->num_tasks(product.input, threads, kernels);
  }
  pool.run(tasks, [&](int64_t task, int thread) {
    const auto product =
        std::upper_bound(products.begin(), products.end(), task,
                         [](int64_t value, const LinearProduct& each) { return value < each.end_task; });
    const int64_t first = product == products.begin() ? 0 : std::prev(product)->end_task;
    const TaskArea area = product->weight->task_area(task - first, product->input, threads, kernels);
    if (area.empty()) return;
    product->weight->run_area(area, thread, product->input, product->output, area.in(product->output), kernels);
  });
}

}  // namespace headrace

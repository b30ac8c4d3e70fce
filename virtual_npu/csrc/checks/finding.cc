#include "checks/finding.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "paddle/phi/core/enforce.h"

namespace virtual_npu {
namespace checks {
namespace {

std::mutex mutex;
std::atomic<bool> is_postponed{false};
std::string& postponed() {
  static auto* text = new std::string;  // memory is released after static objects are gone
  return *text;
}

std::string with_check(const char* check, const std::string& text) {
  const char *ranks = std::getenv("PADDLE_TRAINERS_NUM"), *rank = std::getenv("PADDLE_TRAINER_ID");
  const bool is_one_of_several = ranks && rank && std::string(ranks) != "1";
  return "VIRTUAL_NPU_CHECK (" + std::string(check) + ")" + (is_one_of_several ? " on rank " + std::string(rank) : "") +
         ": " + text;
}

}  // namespace

void raise_finding(const char* check, const std::string& text) {
  PADDLE_THROW(common::errors::PreconditionNotMet("%s", with_check(check, text)));
}

void raise_at_next_launch(const char* check, const std::string& text) {
  const std::string finding = with_check(check, text);
  std::fprintf(stderr, "virtual npu: %s\n", finding.c_str());
  std::lock_guard<std::mutex> lock(mutex);
  if (!postponed().empty()) return;
  postponed() = finding;
  is_postponed.store(true, std::memory_order_release);
}

void raise_postponed_finding() {
  if (!is_postponed.load(std::memory_order_acquire)) return;
  std::string finding;
  {
    std::lock_guard<std::mutex> lock(mutex);
    finding.swap(postponed());
    is_postponed.store(false, std::memory_order_release);
  }
  if (!finding.empty()) PADDLE_THROW(common::errors::PreconditionNotMet("%s", finding));
}

}  // namespace checks
}  // namespace virtual_npu

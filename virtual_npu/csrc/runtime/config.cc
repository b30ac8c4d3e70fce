#include "runtime/config.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace virtual_npu {
namespace {

constexpr size_t kGiB = size_t{1} << 30;
constexpr size_t kUnlimited = kGiB << 14;  // 16 TiB of addresses, so a dry run can report the memory of any step

const char* value_of(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

std::invalid_argument refusal(const char* name, const std::string& value, const char* accepted) {
  return std::invalid_argument(std::string(name) + "=" + value + " is invalid; accepted: " + accepted + ".");
}

bool flag(const char* name, bool otherwise) {
  const char* value = value_of(name);
  if (!value) return otherwise;
  const std::string text = value;
  if (text == "1") return true;
  if (text == "0") return false;
  throw refusal(name, text, "0 or 1");
}

double number(const char* name, const char* accepted) {
  const char* value = value_of(name);
  char* end = nullptr;
  const double parsed = std::strtod(value, &end);
  if (end == value || *end) throw refusal(name, value, accepted);
  return parsed;
}

double positive(const char* name, double otherwise, bool or_zero = false) {
  const char* accepted = or_zero ? "a number from 0 to 1e6" : "a number above zero, at most 1e6";
  if (!value_of(name)) return otherwise;
  const double value = number(name, accepted);
  if (!(value > 0 || (or_zero && value == 0)) || value > 1e6) throw refusal(name, value_of(name), accepted);
  return value;
}

// Four fifths of the memory available to this process, and at most 64 GiB, the memory of a card.
size_t default_capacity() {
  size_t host = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
  // The limit of a container, in cgroup version 2 or 1. "max" does not parse, and "no limit" is a huge number.
  for (const char* file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream stream(file);
    size_t limit = 0;
    if (stream >> limit && limit > 0) host = std::min(host, limit);
  }
  return std::min(host / 5 * 4, 64 * kGiB);
}

Card card() {
  const char* value = value_of("VIRTUAL_NPU_CARD");
  const std::string text = value ? value : "910b";
  if (text == "910b") return Card::k910B;
  if (text == "910c") return Card::k910C;
  if (text == "950") return Card::k950;
  throw refusal("VIRTUAL_NPU_CARD", text, "910b, 910c or 950");
}

void read_checks(Config* config) {
  const char* value = value_of("VIRTUAL_NPU_CHECK");
  std::istringstream names(value ? value : "");
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "race") config->checks |= kCheckRace;
    else if (name == "init") config->checks |= kCheckInit;
    else if (name == "memory") config->checks |= kCheckMemory;
    else if (name == "sync") config->counts_waits = true;
    else throw refusal("VIRTUAL_NPU_CHECK", value, "a list of race, init, memory and sync, separated by commas");
  }
}

Config read() {
  Config config;
  config.card = card();
  if (config.card == Card::k910C) config.devices = 16;
  if (const char* value = value_of("VIRTUAL_NPU_FLOAT_STATUS")) {
    const std::string text = value;
    if (text != "allowed" && text != "refused") throw refusal("VIRTUAL_NPU_FLOAT_STATUS", text, "allowed or refused");
    config.float_status = text == "allowed";
  }
  if (value_of("VIRTUAL_NPU_DEVICES")) {
    const char* accepted = "a whole number from 1 to 16";
    const double devices = number("VIRTUAL_NPU_DEVICES", accepted);
    if (!(devices >= 1 && devices <= 16) || devices != int(devices))
      throw refusal("VIRTUAL_NPU_DEVICES", value_of("VIRTUAL_NPU_DEVICES"), accepted);
    config.devices = int(devices);
  }
  config.dry = flag("VIRTUAL_NPU_DRY", false);
  read_checks(&config);
  if (value_of("VIRTUAL_NPU_DEFER")) {
    const char* accepted = "a whole number from 1 to 1e6, the seed of the order";
    const double seed = number("VIRTUAL_NPU_DEFER", accepted);
    if (!(seed >= 1 && seed <= 1e6) || seed != unsigned(seed))
      throw refusal("VIRTUAL_NPU_DEFER", value_of("VIRTUAL_NPU_DEFER"), accepted);
    config.defer = unsigned(seed);
  }
  if (config.defer && (config.dry || config.checks || config.counts_waits || value_of("VIRTUAL_NPU_JOURNAL")))
    throw std::invalid_argument(
        "VIRTUAL_NPU_DEFER computes kernels after their launch, so it cannot be combined with VIRTUAL_NPU_DRY, "
        "VIRTUAL_NPU_CHECK or VIRTUAL_NPU_JOURNAL. Unset one of them.");
  if (config.dry && (config.checks || config.counts_waits))
    throw std::invalid_argument(
        "VIRTUAL_NPU_CHECK checks computed values and running work; VIRTUAL_NPU_DRY=1 does not compute. Unset one of them.");
  if (const char* journal = value_of("VIRTUAL_NPU_JOURNAL")) config.journal = journal;
  config.memory_bytes = config.dry ? kUnlimited : default_capacity();
  if (value_of("VIRTUAL_NPU_MEMORY_GB")) {
    const char* accepted = "a positive number of GiB";
    const double capacity = number("VIRTUAL_NPU_MEMORY_GB", accepted);
    if (!(capacity > 0) || capacity > 1e6)
      throw refusal("VIRTUAL_NPU_MEMORY_GB", value_of("VIRTUAL_NPU_MEMORY_GB"), accepted);
    config.memory_bytes = size_t(capacity * double(kGiB));
  }
  config.link_gbps = positive("VIRTUAL_NPU_LINK_GBPS", config.link_gbps);
  config.link_us = positive("VIRTUAL_NPU_LINK_US", config.link_us, true);
  config.rdma_gbps = positive("VIRTUAL_NPU_RDMA_GBPS", config.rdma_gbps);
  config.rdma_us = positive("VIRTUAL_NPU_RDMA_US", config.rdma_us, true);
  config.collective_timeout = positive("VIRTUAL_NPU_COLLECTIVE_TIMEOUT", config.collective_timeout);
  config.collective_limit = positive("VIRTUAL_NPU_COLLECTIVE_LIMIT", config.collective_limit);
  config.realtime = flag("VIRTUAL_NPU_REALTIME", false);
  config.sync_sends = flag("VIRTUAL_NPU_SYNC_SENDS", false);
  config.strict = flag("VIRTUAL_NPU_STRICT", false);
  config.bridge = flag("VIRTUAL_NPU_BRIDGE", true);
  config.trace = flag("VIRTUAL_NPU_TRACE", false);
  if (const char* call = value_of("VIRTUAL_NPU_REFUSE")) config.refuse = call;
  if (const char* value = value_of("VIRTUAL_NPU_AICPU_WARNINGS")) {
    const std::string text = value;
    if (text != "0" && text != "1" && text != "host") throw refusal("VIRTUAL_NPU_AICPU_WARNINGS", text, "0, 1 or host");
    config.warns = text != "0";
  }
  return config;
}

}  // namespace

const Config& config() {
  static const Config config = read();
  return config;
}

}  // namespace virtual_npu

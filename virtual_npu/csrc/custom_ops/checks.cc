#include "custom_ops/checks.h"

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sstream>

#include "paddle/phi/core/enforce.h"

namespace virtual_npu {
namespace {

bool is_npu(const phi::Place& place) {
  return place.GetType() == phi::AllocationType::CUSTOM && place.GetDeviceType() == "npu";
}

}  // namespace

int emulated_release() {
  const char *variable = std::getenv("VIRTUAL_NPU_CANN"), *card = std::getenv("VIRTUAL_NPU_CARD");
  std::string text = contract::kDefaultRelease;
  for (const auto& of_card : contract::kDefaultsByCard)
    if (card && std::strcmp(card, of_card.card) == 0) text = of_card.release;
  if (variable && *variable) text = variable;
  for (size_t i = 0; i < std::size(contract::kReleases); ++i)
    if (text == contract::kReleases[i].name || text == contract::kReleases[i].short_name) return int(i);
  PADDLE_THROW(common::errors::InvalidArgument("VIRTUAL_NPU_CANN is '%s'; it accepts %s.", text,
                                               contract::kAcceptedReleases));
}

void refuse(const contract::Rule& rule, const char* op, const std::string& came) {
  std::ostringstream sentence;
  sentence << came << "; accepted: " << rule.accepts << ". " << rule.advice;
  const contract::ErrorNumber& error = at_release(rule.error);
  if (error.number != 0) sentence << " (CANN error " << error.number << ", " << error.name << ")";
  refuse(op, sentence.str());
}

void refuse(const char* op, const std::string& sentence) {
  PADDLE_THROW(common::errors::InvalidArgument("%s: %s", op, sentence));
}

void check_places(const char* op, std::initializer_list<Argument> arguments) {
  bool on_one_npu = true;
  std::ostringstream where;
  for (const Argument& argument : arguments) {
    if (!argument.tensor.defined()) refuse(op, std::string(argument.name) + " is missing; accepted: a tensor.");
    const phi::Place& place = argument.tensor.place();
    on_one_npu = on_one_npu && is_npu(place) && place == arguments.begin()->tensor.place();
    where << (&argument == arguments.begin() ? "" : ", ") << argument.name << " is on " << text(place);
  }
  if (on_one_npu) return;
  refuse(op, where.str() + "; accepted: all on one npu device. Move them with tensor.to('npu:0'), or create them "
                           "after paddle.set_device('npu:0').");
}

void refuse_dtype(const contract::Rule& rule, const char* op, const Argument& argument) {
  refuse(rule, op, std::string(argument.name) + " is " + text(argument.tensor.dtype()));
}

void check_same_dtype(const contract::Rule& rule, const char* op, std::initializer_list<Argument> arguments) {
  const Argument& first = *arguments.begin();
  for (const Argument& argument : arguments) {
    if (argument.tensor.dtype() == first.tensor.dtype()) continue;
    refuse(rule, op,
           std::string(argument.name) + " is " + text(argument.tensor.dtype()) + " and " + first.name + " is " +
               text(first.tensor.dtype()));
  }
}

void check_gradient(const char* op, const Argument& tensor, const Argument& gradient) {
  check_places(op, {tensor, gradient});
  if (gradient.tensor.shape() != tensor.tensor.shape())
    refuse(op, std::string(gradient.name) + " has shape " + text(gradient.tensor.shape()) + "; accepted: " +
                   text(tensor.tensor.shape()) + ", the shape of the corresponding tensor.");
  if (gradient.tensor.dtype() == tensor.tensor.dtype()) return;
  refuse(op, std::string(gradient.name) + " is " + text(gradient.tensor.dtype()) + " and " + tensor.name + " is " +
                 text(tensor.tensor.dtype()) + "; accepted: equal dtypes. Cast the gradient with tensor.astype.");
}

}  // namespace virtual_npu

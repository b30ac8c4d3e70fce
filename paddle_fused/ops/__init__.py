"""The fused operators, one file each: public function, checks, composed definition, backends."""

from ..captured import cure, run_as_they_are

cure()
run_as_they_are(__name__)

"""The fused operators, one file each: public function, checks, composed definition, backends."""

from ..captured import run_as_they_are

run_as_they_are(__name__)

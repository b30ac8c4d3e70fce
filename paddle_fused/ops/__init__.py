"""The fused operators, one file each: public function, checks, composed definition, backends."""

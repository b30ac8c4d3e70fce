"""What an installed CANN offers, against what paddle-custom-npu calls: read from files.

=================  ===================================================================================
``installation``   where CANN is installed, the versions of its packages, and the order of versions
``chip``           the families of chips, and which one a card has
``elf``            what a shared library needs and exports
``needs``          what the plugin calls, and which calls a training of Llama makes
``check``          the comparison: libraries, symbols, aclnn functions, aclop types
``float_status``   how a run avoids the FloatStatus operators, which the 910C may lack
``compiler``       the C compiler, for the libraries of the two
``bridge``         a forwarding ``libopapi.so`` for a CANN that has only the libraries it was split into
=================  ===================================================================================
"""

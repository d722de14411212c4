//! EndpointPickerConfig and its companions, checked and turned into the kernel plan.

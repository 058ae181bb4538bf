"""NeuronCore discovery: what the machine has, what a process may take, and where it lies; imports no torch.

`hardware` and `topology` hold the contract's functions; the other modules read one source each. One device here is one
logical NeuronCore, as in `torch.device("neuron", index)`.
"""

"""Operations: arrays on the device in, arrays on the device out; one module for each family."""

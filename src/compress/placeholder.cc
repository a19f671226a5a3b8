#include "compress/codec.h"

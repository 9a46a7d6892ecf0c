#include "corpus.h"

// The mathematical library, as nvcc brings it. Some of it begins with an
// approximation of the GPU's: cases.txt says with what tolerance it is compared.
KERNEL(trigonometry)
{
	float x = small(load<u16>(in, self()));
	float *o = reinterpret_cast<float *>(out) + 4ull * self();
	o[0] = sinf(x);
	o[1] = cosf(x * 1000.0f);
	o[2] = atanf(x);
	o[3] = tanf(x * 0.01f);
}

KERNEL(trigonometry_double)
{
	double x = load<int>(in, self()) / 65536.0;
	double *o = reinterpret_cast<double *>(out) + 2ull * self();
	o[0] = sin(x);
	o[1] = cos(x * 1e6);
}

KERNEL(exponentials)
{
	float x = small(load<u16>(in, self())) / 8;
	float *o = reinterpret_cast<float *>(out) + 4ull * self();
	o[0] = expf(x);
	o[1] = logf(x * x + 0.5f);
	o[2] = powf(x * x + 0.1f, 0.3f);
	o[3] = tanhf(x);
}

KERNEL(exponentials_double)
{
	double x = load<int>(in, self()) / 2147483648.0 * 20;
	double *o = reinterpret_cast<double *>(out) + 4ull * self();
	o[0] = exp(x);
	o[1] = log(x * x + 0.5);
	o[2] = pow(x * x + 0.1, 0.3);
	o[3] = erf(x / 10) + lgamma(x * x + 1);
}

/*
 * What each rival in C needs: the first failure, driver calls that may fail, the clock,
 * and how a failure is answered.
 */
#ifndef DRIVER_H
#define DRIVER_H
#include <cuda.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

/* failure is the first thing that went wrong since it was cleared. */
static char failure[400];

__attribute__((format(printf, 1, 2))) static bool fail(const char *format, ...)
{
	if (failure[0])
		return false;
	va_list args;
	va_start(args, format);
	vsnprintf(failure, sizeof failure, format, args);
	va_end(args);
	return false;
}

/* cu is whether a driver call succeeded, noting what the driver said if not. */
static bool cu(CUresult result, const char *call)
{
	if (result == CUDA_SUCCESS)
		return true;
	const char *name = NULL, *text = NULL;
	cuGetErrorName(result, &name);
	cuGetErrorString(result, &text);
	return fail("%s: %s (%d): %s", call, name ? name : "unknown", (int)result, text ? text : "no text");
}

/* now is CLOCK_MONOTONIC in nanoseconds. */
static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* print_string prints a JSON string; nothing here is other than ASCII. */
static void print_string(const char *text)
{
	putchar('"');
	for (const char *c = text; *c; c++) {
		if (*c == '"' || *c == '\\')
			putchar('\\');
		putchar((unsigned char)*c < ' ' || (unsigned char)*c > '~' ? '?' : *c);
	}
	putchar('"');
}

/* print_error answers with the failure. */
static void print_error(void)
{
	printf("{\"error\":");
	print_string(failure);
	puts("}");
	fflush(stdout);
}

#endif

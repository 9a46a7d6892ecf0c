/* What a framework does with a capsule's structure, in C: it has the deleter called at the end of
 * the process, when there is no interpreter, or while an exception is on its way. */

#include <stddef.h>

extern void PyErr_SetString(void *type, const char *text); /* of the interpreter that loads this */
extern void *PyErr_Occurred(void);
extern void *PyExc_ValueError;

typedef void deleter(void *managed);

static deleter **kept_deleter;
static void *kept;

/* keep takes the structure, and where in it the deleter is. */
void keep(void *managed, size_t at) {
	kept = managed;
	kept_deleter = (deleter **)((char *)managed + at);
}

__attribute__((destructor)) static void at_the_end(void) {
	if (kept && *kept_deleter)
		(*kept_deleter)(kept);
}

/* fail calls the deleter as a call that has failed does, and returns whether it has failed still. */
int fail(void *managed, size_t at) {
	PyErr_SetString(PyExc_ValueError, "of the call");
	(*(deleter **)((char *)managed + at))(managed);
	return PyErr_Occurred() != NULL;
}

/* Start code of a Cortex-M4 or M7 for qemu, with the semihosting of newlib. See docs/export.md. */

#include <stdint.h>

#define CPACR (*(volatile uint32_t *)0xE000ED88)

extern void _start(void); /* of newlib: initializes the C library and calls main */
extern char stack_top[];  /* memory.ld */

static void reset(void)
{
    CPACR |= 0xFu << 20; /* allow the floating-point unit */
    __asm__ volatile("dsb\n isb");
    _start();
}

static void fault(void)
{
    for (;;) {
    }
}

/* What the processor reads first: the stack, and the functions that it calls at reset and at faults. */
__attribute__((section(".vectors"), used)) static const struct {
    char *stack;
    void (*handlers[15])(void);
} vectors = {stack_top, {reset, fault, fault, fault, fault, fault}};

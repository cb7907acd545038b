// SPDX-License-Identifier: Apache-2.0
// emulator/memory.h — buffers and shared arrays between pages that cannot be touched
//
// They end at such a page. What the page cannot see, bytes up to the alignment and bytes in front, holds 0xFF, and is
// looked at after the block or the launch.
#ifndef TB_EMULATOR_MEMORY_H
#define TB_EMULATOR_MEMORY_H

#include "state.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>

static size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

static Buffer map_guarded(size_t size, size_t around) {
    size_t page = page_size(), body = round_up(size ? size : 1, page);
    void *map = mmap(nullptr, body + 2 * around, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return around > page ? map_guarded(size, page) : Buffer();  // addresses may be limited
    unsigned char *pages = (unsigned char *)map + around, *guard = pages + body;
    if (mprotect(pages, body, PROT_READ | PROT_WRITE) != 0) {
        munmap(map, body + 2 * around);
        return {};
    }
    return {guard - size, guard, pages, guard, around};
}

static void unmap_guarded(const Buffer &buffer) {
    munmap(buffer.pages - buffer.around, (size_t)(buffer.guard - buffer.pages) + 2 * buffer.around);
}

// Whether an address is in a buffer, or in what cannot be touched around it.
static bool is_near(const unsigned char *at, const Buffer &buffer) {
    return at >= buffer.pages - buffer.around && at < buffer.guard + buffer.around;
}

static bool untouched(const unsigned char *from, const unsigned char *to) {
    while (from < to) {
        if (*from++ != 0xFF) return false;
    }
    return true;
}

static const unsigned char *front_of(const Buffer &buffer) {
    return std::max(buffer.pages, buffer.start - std::min<size_t>(FRONT, (size_t)(buffer.start - buffer.pages)));
}

// What was written around the buffer: "" when nothing was.
static const char *trespass(const Buffer &buffer) {
    if (!untouched(buffer.end, buffer.guard)) return "past the end";
    if (!untouched(front_of(buffer), buffer.start)) return "in front";
    return "";
}

// Other host threads allocate and free while a kernel runs and its buffers are looked up, or while a process forks.
static volatile char buffers_in_use;

static void enter_buffers() {
    while (__atomic_test_and_set(&buffers_in_use, __ATOMIC_ACQUIRE)) sched_yield();
}
static void leave_buffers() { __atomic_clear(&buffers_in_use, __ATOMIC_RELEASE); }

struct UsingBuffers {
    UsingBuffers() { enter_buffers(); }
    ~UsingBuffers() { leave_buffers(); }
};

void *emulator_allocate(Size size) {
    const UsingBuffers alone;
    Buffer buffer = map_guarded(round_up(size, 16), WIDE);
    if (!buffer.pages) return nullptr;
    buffer.end = buffer.start + size;
    if (buffer_count == buffer_room) {
        size_t room = buffer_room ? 2 * buffer_room : 64;
        Buffer *more = (Buffer *)realloc(buffers, room * sizeof(Buffer));
        if (!more) {
            unmap_guarded(buffer);
            return nullptr;
        }
        buffers = more;
        buffer_room = room;
    }
    memset(buffer.pages, 0xFF, (size_t)(buffer.guard - buffer.pages));
    buffers[buffer_count++] = buffer;
    return buffer.start;
}

bool emulator_free(void *address) {
    const UsingBuffers alone;
    for (size_t i = buffer_count; i-- > 0;) {
        if (buffers[i].start != address) continue;
        unmap_guarded(buffers[i]);
        buffers[i] = buffers[--buffer_count];
        return true;
    }
    return false;
}

bool emulator_contains(const void *address, Size size) {
    const UsingBuffers alone;
    const unsigned char *from = (const unsigned char *)address;
    for (size_t i = 0; i < buffer_count; ++i) {
        if (from >= buffers[i].start && from <= buffers[i].end) return size <= (Size)(buffers[i].end - from);
    }
    return false;
}

static Buffer site_buffer(const Site *site) {
    unsigned char *pages = (unsigned char *)((uintptr_t)site->memory / page_size() * page_size());
    return {site->memory, site->memory + site->size, pages, site->guard, site->around};
}

void *emulator_shared(Site *site, Size size, Size alignment, const char *name) {
    if (site->block_number == block_number) return site->memory;
    if (!site->memory) {
        Buffer buffer = map_guarded(round_up(size, alignment), WIDE);
        if (!buffer.pages) emulator_fail({}, "the host has no memory for shared array %s", name);
        *site = {name, buffer.start, buffer.guard, size, buffer.around, 0, nullptr};
    }
    static_shared += (unsigned)size;
    if (static_shared > 48u << 10) emulator_fail({}, "more than 48 KiB of static shared memory, with array %s", name);
    if (static_shared + setup->shared > setup->shared_limit) {
        emulator_fail({}, "%u bytes of static and %u of dynamic shared memory; a block may have %u", static_shared,
                      setup->shared, setup->shared_limit);
    }
    Buffer buffer = site_buffer(site);
    memset(buffer.pages, 0xFF, (size_t)(buffer.guard - buffer.pages));
    memset(site->memory, setup->fill, size);
    site->block_number = block_number;
    site->next = used_sites;
    used_sites = site;
    return site->memory;
}

void *emulator_dynamic_shared(void) { return dynamic_shared.start; }

static void prepare_dynamic_shared() {
    if (!dynamic_shared.pages) dynamic_shared = map_guarded(256 << 10, WIDE);
    dynamic_shared.start = dynamic_shared.guard - round_up(setup->shared, 16);
    dynamic_shared.end = dynamic_shared.start + setup->shared;
    unsigned char *front = (unsigned char *)front_of(dynamic_shared);
    memset(front, 0xFF, (size_t)(dynamic_shared.guard - front));
    memset(dynamic_shared.start, setup->fill, setup->shared);
}

static void check_shared() {
    const char *where = setup->shared ? trespass(dynamic_shared) : "";
    if (*where) complain({}, "the block wrote %s of its %u bytes of dynamic shared memory", where, setup->shared);
    for (const Site *site = used_sites; site; site = site->next) {
        where = trespass(site_buffer(site));
        if (*where) complain({}, "the block wrote %s of the shared array %s (%zu bytes)", where, site->name, site->size);
    }
}

// Looks around the buffers that the arguments point into. What was written there is put right: later kernels are not
// blamed for it.
static void check_buffers() {
    const UsingBuffers alone;
    for (size_t at = 0; at + sizeof(uintptr_t) <= setup->argument_size; at += sizeof(uintptr_t)) {
        unsigned char *pointer;
        memcpy(&pointer, (const char *)setup->arguments + at, sizeof pointer);
        for (size_t i = 0; i < buffer_count; ++i) {
            const Buffer &buffer = buffers[i];
            if (pointer < buffer.pages || pointer > buffer.guard) continue;
            const char *where = trespass(buffer);
            if (!*where) continue;
            if (!failed) complain({}, "the kernel wrote %s of a buffer of %zu bytes", where, buffer.end - buffer.start);
            unsigned char *front = (unsigned char *)front_of(buffer);
            memset(front, 0xFF, (size_t)(buffer.start - front));
            memset(buffer.end, 0xFF, (size_t)(buffer.guard - buffer.end));
        }
    }
}

#endif

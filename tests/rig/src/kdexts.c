/* kdexts.dll of the rig: `!poolused [FLAGS [TAG]]` in the engine's extension interface.
 *
 * Stands in for Microsoft's extension of the same name, which no package brings. It reads the pool
 * tag tables of the target through the engine, with the layout that the symbols of nt describe,
 * and prints them as current debuggers do. Flags: 1 verbose, 2 by nonpaged use, 4 by paged use.
 * TAG may hold `?` and `*`; its case matters.
 */
#define CINTERFACE
#define INITGUID
#include <windows.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dbgeng.h>

#define CALL(object, method, ...) ((object)->lpVtbl->method((object), ##__VA_ARGS__))
#define EXPORT __declspec(dllexport)

enum { VERBOSE = 1, BY_NONPAGED = 2, BY_PAGED = 4 };
enum { MAXIMUM_ROWS = 1 << 20, MAXIMUM_TABLES = 64, CHUNK = 0x8000 };

struct session {
    IDebugControl *control;
    IDebugDataSpaces *memory;
    IDebugSymbols *symbols;
    int quiet; /* no dots */
};

/* allocs, frees, bytes of nonpaged pool, then of paged pool */
struct row {
    DWORD key;
    ULONG64 counter[6];
};

struct layout {
    ULONG size;
    ULONG offset[6];
    ULONG width[6];
};

static const struct {
    char tag[5];
    const char *text;
} descriptions[] = {
    {"Proc", "Process objects , Binary: nt!ps"},
    {"Thre", "Thread objects , Binary: nt!ps"},
    {"File", "File objects "},
    {"Irp ", "I/O request packets, Binary : nt!io"},
};

static void say(struct session *session, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    CALL(session->control, OutputVaList, DEBUG_OUTPUT_NORMAL, format, values);
    va_end(values);
}

static HRESULT complain(struct session *session, const char *what, const char *name)
{
    CALL(session->control, Output, DEBUG_OUTPUT_ERROR, "%s %s - symbols are wrong\n", what, name);
    return E_FAIL;
}

/* ---- reading the target */

static int read_at(struct session *session, ULONG64 address, void *buffer, ULONG size)
{
    ULONG got = 0;
    HRESULT result = CALL(session->memory, ReadVirtual, address, buffer, size, &got);
    return SUCCEEDED(result) && got == size;
}

static int address_of(struct session *session, const char *name, ULONG64 *address)
{
    HRESULT result = CALL(session->symbols, GetOffsetByName, name, address);
    return SUCCEEDED(result) && *address;
}

/* A variable of pointer size. */
static int read_variable(struct session *session, const char *name, ULONG64 *value)
{
    ULONG64 address;
    ULONG width = CALL(session->control, IsPointer64Bit) == S_OK ? 8 : 4;
    *value = 0;
    return address_of(session, name, &address) && read_at(session, address, value, width);
}

static int find_layout(struct session *session, struct layout *layout)
{
    static const char *const names[] = {"NonPagedAllocs", "NonPagedFrees", "NonPagedBytes",
                                        "PagedAllocs",    "PagedFrees",    "PagedBytes"};
    ULONG64 variable, module;
    ULONG type;
    if (!address_of(session, "nt!PoolTrackTable", &variable) ||
        FAILED(CALL(session->symbols, GetModuleByOffset, variable, 0, NULL, &module)))
        return 0;
    if (FAILED(CALL(session->symbols, GetTypeId, module, "_POOL_TRACKER_TABLE", &type)) &&
        FAILED(CALL(session->symbols, GetTypeId, module, "POOL_TRACKER_TABLE", &type)))
        return 0;
    if (FAILED(CALL(session->symbols, GetTypeSize, module, type, &layout->size)))
        return 0;
    for (int i = 0; i < 6; i++)
        if (FAILED(CALL(session->symbols, GetFieldOffset, module, type, names[i],
                        &layout->offset[i])))
            return 0;
    ULONG pointer = CALL(session->control, IsPointer64Bit) == S_OK ? 8 : 4;
    for (int i = 0; i < 6; i += 3) {
        /* The two counters are neighbours, so their distance is their width. */
        layout->width[i] = layout->width[i + 1] = layout->offset[i + 1] - layout->offset[i];
        layout->width[i + 2] = pointer;
    }
    for (int i = 0; i < 6; i++)
        if ((layout->width[i] != 4 && layout->width[i] != 8) ||
            layout->offset[i] + layout->width[i] > layout->size)
            return 0;
    return 1;
}

/* Add one table to the sums, row by row: row i belongs to the same tag in every table. */
static int add_table(struct session *session, const struct layout *layout, ULONG64 address,
                     ULONG count, struct row *sums)
{
    ULONG64 size = (ULONG64)count * layout->size;
    BYTE *table = malloc(size);
    if (!table)
        return 0;
    for (ULONG64 at = 0; at < size; at += CHUNK) {
        ULONG length = (ULONG)(size - at < CHUNK ? size - at : CHUNK);
        if (!read_at(session, address + at, table + at, length) ||
            CALL(session->control, GetInterrupt) == S_OK) {
            free(table);
            return 0;
        }
        if (!session->quiet)
            say(session, ".");
    }
    for (ULONG i = 0; i < count; i++) {
        BYTE *row = table + (ULONG64)i * layout->size;
        DWORD key;
        memcpy(&key, row, sizeof key);
        if (!sums[i].key)
            sums[i].key = key & 0x7fffffff;
        for (int c = 0; c < 6; c++) {
            ULONG64 value = 0;
            memcpy(&value, row + layout->offset[c], layout->width[c]);
            sums[i].counter[c] += value;
        }
    }
    free(table);
    return 1;
}

static LONG64 as_signed(ULONG64 value, ULONG width)
{
    return width == 4 ? (LONG)(DWORD)value : (LONG64)value;
}

/* As the kernel does: nothing outstanding means no bytes, and no bytes nothing outstanding. */
static void normalise(struct row *row, const struct layout *layout)
{
    for (int i = 0; i < 6; i += 3) {
        ULONG64 mask = layout->width[i] == 4 ? 0xffffffff : ~(ULONG64)0;
        ULONG64 allocs = row->counter[i] & mask, frees = row->counter[i + 1] & mask;
        LONG64 bytes = as_signed(row->counter[i + 2], layout->width[i + 2]);
        if (as_signed(allocs - frees, layout->width[i]) <= 0) {
            allocs = frees;
            bytes = 0;
        } else if (bytes <= 0) {
            frees = allocs;
            bytes = 0;
        }
        row->counter[i] = allocs;
        row->counter[i + 1] = frees;
        row->counter[i + 2] = bytes;
    }
}

/* ---- printing */

static int matches(const char *pattern, const char *tag, const char *end)
{
    for (; *pattern; pattern++, tag++) {
        if (*pattern == '*') {
            for (const char *rest = tag; rest <= end; rest++)
                if (matches(pattern + 1, rest, end))
                    return 1;
            return 0;
        }
        if (tag == end || (*pattern != '?' && *pattern != *tag))
            return 0;
    }
    /* `Irp` stands for `Irp `. */
    while (tag < end && *tag == ' ')
        tag++;
    return tag == end;
}

static void tag_text(DWORD key, char text[5])
{
    memcpy(text, &key, 4);
    text[4] = 0;
    for (int i = 0; i < 4; i++)
        if (text[i] < ' ' || text[i] > '~')
            text[i] = '.';
}

static int sort_column;

static int compare(const void *one, const void *other)
{
    const struct row *a = one, *b = other;
    if (sort_column) {
        LONG64 x = a->counter[sort_column], y = b->counter[sort_column];
        if (x != y)
            return x < y ? 1 : -1;
    }
    return memcmp(&a->key, &b->key, sizeof a->key);
}

static void print_numbers(struct session *session, const struct row *row, ULONG flags)
{
    const ULONG64 *c = row->counter;
    if (flags & VERBOSE)
        say(session, "%12I64u%12I64u%10I64d%13I64d%13I64u%12I64u%10I64d%13I64d", c[0], c[1],
            c[0] - c[1], c[2], c[3], c[4], c[3] - c[4], c[5]);
    else
        say(session, "%10I64d%13I64d%11I64d%13I64d", c[0] - c[1], c[2], c[3] - c[4], c[5]);
}

static void print_row(struct session *session, const struct row *row, ULONG flags)
{
    char text[5];
    tag_text(row->key, text);
    say(session, " %s", text);
    print_numbers(session, row, flags);
    for (size_t i = 0; i < sizeof descriptions / sizeof *descriptions; i++) {
        if (!memcmp(descriptions[i].tag, text, 4)) {
            say(session, "\t%s\n", descriptions[i].text);
            return;
        }
    }
    say(session, "\tUNKNOWN pooltag '%s', please update pooltag.txt\n", text);
}

static void print_header(struct session *session, ULONG flags)
{
    if (flags & VERBOSE)
        say(session, "%36s%46s\n Tag%13s%12s%10s%13s%13s%12s%10s%13s\n\n", "NonPaged", "Paged",
            "Allocs", "Frees", "Diff", "Used", "Allocs", "Frees", "Diff", "Used");
    else
        say(session, "%23s%23s\n Tag%11s%13s%11s%13s\n\n", "NonPaged", "Paged", "Allocs", "Used",
            "Allocs", "Used");
}

static HRESULT print_list(struct session *session, struct row *rows, ULONG count, ULONG flags,
                          const char *filter)
{
    struct row total = {0};
    sort_column = flags & BY_NONPAGED ? 2 : flags & BY_PAGED ? 5 : 0;
    if (!session->quiet)
        say(session, "\n Sorting by %s\n", flags & BY_NONPAGED ? "NonPaged Pool Consumed"
                                           : flags & BY_PAGED  ? "Paged Pool Consumed"
                                                               : "Tag");
    say(session, "\n");
    print_header(session, flags);
    qsort(rows, count, sizeof *rows, compare);
    for (ULONG i = 0; i < count; i++) {
        const char *tag = (const char *)&rows[i].key;
        const ULONG64 *c = rows[i].counter;
        if (!rows[i].key || (*filter && !matches(filter, tag, tag + 4)))
            continue;
        if (c[0] == c[1] && c[3] == c[4] && !(flags & VERBOSE && (c[0] || c[3])))
            continue;
        if (CALL(session->control, GetInterrupt) == S_OK)
            return E_ABORT;
        print_row(session, &rows[i], flags);
        for (int n = 0; n < 6; n++)
            total.counter[n] += c[n];
    }
    say(session, "\nTOTAL");
    print_numbers(session, &total, flags);
    say(session, "\n");
    return S_OK;
}

/* ---- the command */

static ULONG find_tables(struct session *session, ULONG64 *tables)
{
    ULONG64 main_table, array;
    ULONG processors = 0, count = 0;
    ULONG width = CALL(session->control, IsPointer64Bit) == S_OK ? 8 : 4;
    if (!read_variable(session, "nt!PoolTrackTable", &main_table) || !main_table)
        return 0;
    tables[count++] = main_table;
    CALL(session->control, GetNumberProcessors, &processors);
    if (!address_of(session, "nt!ExPoolTagTables", &array))
        return count;
    for (ULONG i = 0; i < processors && count < MAXIMUM_TABLES; i++) {
        ULONG64 table = 0;
        if (read_at(session, array + (ULONG64)i * width, &table, width) && table &&
            table != main_table)
            tables[count++] = table;
    }
    return count;
}

static HRESULT list_pool(struct session *session, ULONG flags, const char *filter)
{
    struct layout layout;
    ULONG64 tables[MAXIMUM_TABLES], size, expansion_size = 0, expansion = 0;
    ULONG count = find_tables(session, tables);
    if (!count)
        return complain(session, "unable to get", "nt!PoolTrackTable");
    if (!read_variable(session, "nt!PoolTrackTableSize", &size) || !size || size > MAXIMUM_ROWS)
        return complain(session, "unable to get", "nt!PoolTrackTableSize");
    if (!find_layout(session, &layout))
        return complain(session, "unable to get", "nt!_POOL_TRACKER_TABLE");
    if (read_variable(session, "nt!PoolTrackTableExpansionSize", &expansion_size) &&
        expansion_size && expansion_size <= MAXIMUM_ROWS)
        read_variable(session, "nt!PoolTrackTableExpansion", &expansion);
    if (!expansion)
        expansion_size = 0;

    struct row *rows = calloc(size + expansion_size, sizeof *rows);
    if (!rows)
        return E_OUTOFMEMORY;
    HRESULT result = S_OK;
    for (ULONG i = 0; i < count && SUCCEEDED(result); i++)
        if (!add_table(session, &layout, tables[i], (ULONG)size, rows))
            result = complain(session, "\nunable to read", "the pool tag tables");
    for (ULONG64 i = 0; i < size; i++)
        normalise(&rows[i], &layout);
    if (SUCCEEDED(result) && expansion &&
        !add_table(session, &layout, expansion, (ULONG)expansion_size, rows + size))
        result = complain(session, "\nunable to read", "nt!PoolTrackTableExpansion");
    if (SUCCEEDED(result))
        result = print_list(session, rows, (ULONG)(size + expansion_size), flags, filter);
    free(rows);
    return result;
}

EXPORT HRESULT CALLBACK poolused(IDebugClient *client, PCSTR arguments)
{
    struct session session = {0};
    char filter[64] = "";
    char *rest;
    ULONG flags = strtoul(arguments ? arguments : "", &rest, 16);
    sscanf(rest, " %63s", filter);
    /* One tag without the verbose bit: neither dots nor the line about sorting. */
    session.quiet = *filter && !(flags & VERBOSE);
    HRESULT result = CALL(client, QueryInterface, &IID_IDebugControl, (void **)&session.control);
    if (SUCCEEDED(result))
        result = CALL(client, QueryInterface, &IID_IDebugDataSpaces, (void **)&session.memory);
    if (SUCCEEDED(result))
        result = CALL(client, QueryInterface, &IID_IDebugSymbols, (void **)&session.symbols);
    if (SUCCEEDED(result))
        result = list_pool(&session, flags, filter);
    if (session.symbols)
        CALL(session.symbols, Release);
    if (session.memory)
        CALL(session.memory, Release);
    if (session.control)
        CALL(session.control, Release);
    return result;
}

EXPORT HRESULT CALLBACK DebugExtensionInitialize(PULONG version, PULONG flags)
{
    *version = DEBUG_EXTENSION_VERSION(1, 0);
    *flags = 0;
    return S_OK;
}

/* kd.exe of the rig: a console host over Microsoft's dbgeng.dll, used as the real kd.exe is.
 *
 *   kd -k CONNECTION | -z DUMP   [-b] [-d] [-y SYMBOLPATH] [-c COMMANDS] [-logo FILE | -loga FILE]
 *
 * A prompt is printed without a line end, commands are read from standard input, one a line, and
 * are not echoed. A line that comes while the target runs waits for the next prompt. Ctrl+C,
 * Ctrl+Break, and (under Wine) SIGINT sent to this process ask the engine to break in; so does a
 * byte 0x03 on standard input, at once and whatever the target does: an addition of ours for
 * those who can send no console event.
 * `q` ends the session and leaves the target stopped, `qd` lets it run. The end of standard
 * input counts as `qd`: a target that runs is broken into first, and where it does not answer
 * the program ends all the same.
 */
#define CINTERFACE
#define INITGUID
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dbgeng.h>

#define CALL(object, method, ...) ((object)->lpVtbl->method((object), ##__VA_ARGS__))

static IDebugClient *client;
static IDebugControl *control;

static void fail(const char *what, HRESULT result)
{
    printf("%s, %s 0x%08lx\n", what, "HRESULT", (unsigned long)result);
    fflush(stdout);
    ExitProcess(1);
}

/* ---- what the engine prints goes to standard output, at once */

static CRITICAL_SECTION output_lock;

static void print(const char *text)
{
    EnterCriticalSection(&output_lock);
    fputs(text, stdout);
    fflush(stdout);
    LeaveCriticalSection(&output_lock);
}

static HRESULT STDMETHODCALLTYPE output_query(IDebugOutputCallbacks *self, REFIID id, void **out)
{
    int known = IsEqualGUID(id, &IID_IDebugOutputCallbacks) || IsEqualGUID(id, &IID_IUnknown);
    *out = known ? self : NULL;
    return known ? S_OK : E_NOINTERFACE;
}

static ULONG STDMETHODCALLTYPE output_reference(IDebugOutputCallbacks *self) { return 1; }

static HRESULT STDMETHODCALLTYPE output_text(IDebugOutputCallbacks *self, ULONG mask, PCSTR text)
{
    print(text);
    return S_OK;
}

static IDebugOutputCallbacksVtbl output_methods = {
    output_query, output_reference, output_reference, output_text};
static IDebugOutputCallbacks output = {&output_methods};

/* ---- the break request */

enum { END_PATIENCE = 5000 }; /* milliseconds */

static volatile LONG broken_in_for_end; /* standard input ended while the target ran */

static void break_in(void)
{
    if (control)
        CALL(control, SetInterrupt, DEBUG_INTERRUPT_ACTIVE);
}

static BOOL WINAPI console_event(DWORD event)
{
    if (event != CTRL_C_EVENT && event != CTRL_BREAK_EVENT)
        return FALSE;
    break_in();
    return TRUE;
}

/* Wine turns SIGINT into an exception of this code in the process' first thread. */
static LONG CALLBACK interrupt_signal(EXCEPTION_POINTERS *exception)
{
    if (exception->ExceptionRecord->ExceptionCode != (DWORD)CONTROL_C_EXIT)
        return EXCEPTION_CONTINUE_SEARCH;
    break_in();
    return EXCEPTION_CONTINUE_EXECUTION;
}

/* ---- lines of standard input, in order */

struct line {
    struct line *next;
    char text[];
};

static struct line *first_line, **last_line = &first_line;
static CRITICAL_SECTION line_lock;
static HANDLE line_came;
static volatile LONG input_ended;
static volatile LONG waiting; /* the first thread is in WaitForEvent */

static void add_line(const char *text, size_t length)
{
    struct line *one = malloc(sizeof *one + length + 1);
    if (!one)
        ExitProcess(1);
    one->next = NULL;
    memcpy(one->text, text, length);
    one->text[length] = 0;
    EnterCriticalSection(&line_lock);
    *last_line = one;
    last_line = &one->next;
    LeaveCriticalSection(&line_lock);
    SetEvent(line_came);
}

static struct line *take_line(void)
{
    for (;;) {
        /* Looked at before the queue: a line added before the end is not lost. */
        LONG ended = input_ended;
        EnterCriticalSection(&line_lock);
        struct line *one = first_line;
        if (one && !(first_line = one->next))
            last_line = &first_line;
        LeaveCriticalSection(&line_lock);
        if (one || ended)
            return one;
        WaitForSingleObject(line_came, INFINITE);
    }
}

static DWORD WINAPI read_input(void *unused)
{
    static char block[4096], text[1 << 16];
    size_t length = 0;
    DWORD got;
    HANDLE in = GetStdHandle(STD_INPUT_HANDLE);
    while (ReadFile(in, block, sizeof block, &got, NULL) && got) {
        for (DWORD i = 0; i < got; i++) {
            char byte = block[i];
            if (byte == 3) {
                break_in();
            } else if (byte == '\n') {
                add_line(text, length);
                length = 0;
            } else if (byte != '\r' && length < sizeof text) {
                text[length++] = byte;
            }
        }
    }
    if (length)
        add_line(text, length);
    InterlockedExchange(&input_ended, 1);
    SetEvent(line_came);
    /* Only when every line has been taken: they may contain what ends the session. */
    for (;;) {
        EnterCriticalSection(&line_lock);
        int empty = !first_line;
        LeaveCriticalSection(&line_lock);
        if (empty && waiting) {
            InterlockedExchange(&broken_in_for_end, 1);
            break_in();
            /* The first thread ends the program when the target has stopped. */
            Sleep(END_PATIENCE);
            print("\nthe target does not answer\n");
            ExitProcess(1);
        }
        Sleep(50);
    }
}

/* ---- the session */

static ULONG status(void)
{
    ULONG now = DEBUG_STATUS_NO_DEBUGGEE;
    CALL(control, GetExecutionStatus, &now);
    return now;
}

static void execute(const char *command)
{
    CALL(control, Execute, DEBUG_OUTCTL_ALL_CLIENTS, command, DEBUG_EXECUTE_NO_REPEAT);
}

static void end_session(ULONG how)
{
    print("quit:\n");
    CALL(client, EndSession, how);
    ExitProcess(0);
}

static int is_command(const char *line, const char *command)
{
    size_t length = strlen(command);
    while (*line == ' ')
        line++;
    return !_strnicmp(line, command, length) && !line[length + strspn(line + length, " ")];
}

static void serve_prompts(void)
{
    while (status() == DEBUG_STATUS_BREAK) {
        CALL(control, OutputPrompt, DEBUG_OUTCTL_ALL_CLIENTS, " ");
        struct line *line = take_line();
        if (!line || is_command(line->text, "qd"))
            end_session(DEBUG_END_ACTIVE_DETACH);
        if (is_command(line->text, "q"))
            end_session(DEBUG_END_ACTIVE_TERMINATE);
        execute(line->text);
        free(line);
    }
}

static int usage(const char *argument)
{
    printf("kd: cannot use argument '%s'\n", argument);
    return 2;
}

int main(int count, char **arguments)
{
    const char *connection = NULL, *dump = NULL, *symbols = NULL, *commands = NULL, *log = NULL;
    BOOL append = FALSE;
    ULONG options = 0;
    HRESULT result;

    for (int i = 1; i < count; i++) {
        const char *name = arguments[i], *value = i + 1 < count ? arguments[i + 1] : NULL;
        const char **takes = !strcmp(name, "-k") ? &connection
                             : !strcmp(name, "-z") ? &dump
                             : !strcmp(name, "-y") ? &symbols
                             : !strcmp(name, "-c") ? &commands
                             : !strcmp(name, "-logo") || !strcmp(name, "-loga") ? &log
                             : NULL;
        if (takes && value) {
            append = !strcmp(name, "-loga") || (append && takes != &log);
            *takes = value;
            i++;
        } else if (!strcmp(name, "-b")) {
            options |= DEBUG_ENGOPT_INITIAL_BREAK;
        } else if (!strcmp(name, "-d")) {
            options |= DEBUG_ENGOPT_INITIAL_MODULE_BREAK;
        } else {
            return usage(name);
        }
    }
    if (!connection == !dump)
        return usage(connection ? "-z" : "nothing to debug");

    InitializeCriticalSection(&output_lock);
    InitializeCriticalSection(&line_lock);
    line_came = CreateEventA(NULL, FALSE, FALSE, NULL);
    LoadLibraryA("kdfix.dll"); /* needed under Wine only */
    CoInitializeEx(NULL, COINIT_MULTITHREADED);
    HMODULE engine = LoadLibraryA("dbgeng.dll");
    if (!engine)
        fail("cannot load dbgeng.dll", HRESULT_FROM_WIN32(GetLastError()));
    HRESULT(WINAPI * create)(REFIID, void **) = (void *)GetProcAddress(engine, "DebugCreate");
    if (!create || FAILED(result = create(&IID_IDebugClient, (void **)&client)))
        fail("cannot create the debugger engine", create ? result : E_FAIL);
    if (FAILED(result = CALL(client, QueryInterface, &IID_IDebugControl, (void **)&control)))
        fail("the engine lacks IDebugControl", result);
    CALL(client, SetOutputCallbacks, &output);

    /* A program started in a process group of its own is born deaf to Ctrl+C. */
    SetConsoleCtrlHandler(NULL, FALSE);
    SetConsoleCtrlHandler(console_event, TRUE);
    AddVectoredExceptionHandler(1, interrupt_signal);
    if (symbols) {
        IDebugSymbols *interface_ = NULL;
        if (SUCCEEDED(CALL(client, QueryInterface, &IID_IDebugSymbols, (void **)&interface_)))
            CALL(interface_, SetSymbolPath, symbols);
    }
    if (log && FAILED(CALL(control, OpenLogFile, log, append)))
        print("log file could not be opened\n");
    CALL(control, AddEngineOptions, options);

    if (connection)
        result = CALL(client, AttachKernel, DEBUG_ATTACH_KERNEL_CONNECTION, connection);
    else
        result = CALL(client, OpenDumpFile, dump);
    if (FAILED(result))
        fail("Kernel debugger failed initialization", result);
    CreateThread(NULL, 0, read_input, NULL, 0, NULL);

    for (int event = 0;; event++) {
        InterlockedExchange(&waiting, 1);
        result = CALL(control, WaitForEvent, DEBUG_WAIT_DEFAULT, INFINITE);
        InterlockedExchange(&waiting, 0);
        if (FAILED(result))
            fail("WaitForEvent failed", result);
        if (broken_in_for_end)
            end_session(DEBUG_END_ACTIVE_DETACH);
        CALL(control, OutputCurrentState, DEBUG_OUTCTL_ALL_CLIENTS, DEBUG_CURRENT_DEFAULT);
        if (!event && commands)
            execute(commands);
        serve_prompts();
        if (status() == DEBUG_STATUS_NO_DEBUGGEE && dump)
            return 0;
    }
}

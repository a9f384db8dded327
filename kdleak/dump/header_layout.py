"""DUMP_HEADER32 and DUMP_HEADER64 as data: which field lies where.

Source: the public crash dump definitions of the Windows SDK.
"""

from __future__ import annotations

from construct import Array, Bytes, Int8ul, Int32ul, Int64ul, Pointer, Struct

# Runs that PHYSICAL_MEMORY_DESCRIPTOR has room for inside the header.
MOST_RUNS_32 = 86
MOST_RUNS_64 = 43

HEADER32 = Struct(
    "valid_dump" / Pointer(0x004, Bytes(4)),
    "major" / Pointer(0x008, Int32ul),
    "build" / Pointer(0x00C, Int32ul),
    "directory_table_base" / Pointer(0x010, Int32ul),
    "pfn_database" / Pointer(0x014, Int32ul),
    "module_list" / Pointer(0x018, Int32ul),
    "process_list" / Pointer(0x01C, Int32ul),
    "machine" / Pointer(0x020, Int32ul),
    "processors" / Pointer(0x024, Int32ul),
    "bug_check_code" / Pointer(0x028, Int32ul),
    "bug_check_parameters" / Pointer(0x02C, Array(4, Int32ul)),
    "version_user" / Pointer(0x03C, Bytes(32)),
    "pae" / Pointer(0x05C, Int8ul),
    "kd_secondary_version" / Pointer(0x05D, Int8ul),
    "debugger_data" / Pointer(0x060, Int32ul),
    "number_of_runs" / Pointer(0x064, Int32ul),
    "number_of_pages" / Pointer(0x068, Int32ul),
    "runs" / Pointer(0x06C, Array(2 * MOST_RUNS_32, Int32ul)),
    "context" / Pointer(0x320, Bytes(1200)),
    "exception_code" / Pointer(0x7D0, Int32ul),
    "exception_flags" / Pointer(0x7D4, Int32ul),
    "exception_record" / Pointer(0x7D8, Int32ul),
    "exception_address" / Pointer(0x7DC, Int32ul),
    "exception_count" / Pointer(0x7E0, Int32ul),
    "exception_parameters" / Pointer(0x7E4, Array(15, Int32ul)),
    "comment" / Pointer(0x820, Bytes(128)),
    "attributes" / Pointer(0x8A0, Int32ul),
    "boot_id" / Pointer(0x8A4, Int32ul),
    "dump_type" / Pointer(0xF88, Int32ul),
    "mini_dump_fields" / Pointer(0xF8C, Int32ul),
    "secondary_data_state" / Pointer(0xF90, Int32ul),
    "product_type" / Pointer(0xF94, Int32ul),
    "suite_mask" / Pointer(0xF98, Int32ul),
    "writer_status" / Pointer(0xF9C, Int32ul),
    "required_space" / Pointer(0xFA0, Int64ul),
    "uptime" / Pointer(0xFB8, Int64ul),
    "system_time" / Pointer(0xFC0, Int64ul),
)

HEADER64 = Struct(
    "valid_dump" / Pointer(0x0004, Bytes(4)),
    "major" / Pointer(0x0008, Int32ul),
    "build" / Pointer(0x000C, Int32ul),
    "directory_table_base" / Pointer(0x0010, Int64ul),
    "pfn_database" / Pointer(0x0018, Int64ul),
    "module_list" / Pointer(0x0020, Int64ul),
    "process_list" / Pointer(0x0028, Int64ul),
    "machine" / Pointer(0x0030, Int32ul),
    "processors" / Pointer(0x0034, Int32ul),
    "bug_check_code" / Pointer(0x0038, Int32ul),
    "bug_check_parameters" / Pointer(0x0040, Array(4, Int64ul)),
    "version_user" / Pointer(0x0060, Bytes(32)),
    "debugger_data" / Pointer(0x0080, Int64ul),
    "number_of_runs" / Pointer(0x0088, Int32ul),
    "number_of_pages" / Pointer(0x0090, Int64ul),
    "runs" / Pointer(0x0098, Array(2 * MOST_RUNS_64, Int64ul)),
    "context" / Pointer(0x0348, Bytes(3000)),
    "exception_code" / Pointer(0x0F00, Int32ul),
    "exception_flags" / Pointer(0x0F04, Int32ul),
    "exception_record" / Pointer(0x0F08, Int64ul),
    "exception_address" / Pointer(0x0F10, Int64ul),
    "exception_count" / Pointer(0x0F18, Int32ul),
    "exception_parameters" / Pointer(0x0F20, Array(15, Int64ul)),
    "dump_type" / Pointer(0x0F98, Int32ul),
    "required_space" / Pointer(0x0FA0, Int64ul),
    "system_time" / Pointer(0x0FA8, Int64ul),
    "comment" / Pointer(0x0FB0, Bytes(128)),
    "uptime" / Pointer(0x1030, Int64ul),
    "mini_dump_fields" / Pointer(0x1038, Int32ul),
    "secondary_data_state" / Pointer(0x103C, Int32ul),
    "product_type" / Pointer(0x1040, Int32ul),
    "suite_mask" / Pointer(0x1044, Int32ul),
    "writer_status" / Pointer(0x1048, Int32ul),
    "kd_secondary_version" / Pointer(0x104D, Int8ul),
    "attributes" / Pointer(0x1050, Int32ul),
    "boot_id" / Pointer(0x1054, Int32ul),
)
